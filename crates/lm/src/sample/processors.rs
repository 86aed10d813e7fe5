//! What changes logits before anybody chooses: bias, repetition, presence, frequency, so ordered.
//!
//! Owns their formulas. Ids beyond the logits (a prompt may hold some) are passed over, and a
//! finite logit never becomes positive infinity: it saturates. Refuses to look at the distribution.

use super::{History, SamplingParams};
use crate::{Error, Kind, Result};

/// Applies every processor of `params` to the `logits` of one row.
///
/// # Errors
/// [`Kind::Bug`] if `history` lacks a window that `params` needs.
pub(super) fn process(
    params: &SamplingParams,
    history: &History,
    logits: &mut [f32],
) -> Result<()> {
    for &(id, bias) in &params.logit_bias {
        change(logits, id, |x| x + f64::from(bias));
    }
    let [repetition, presence, frequency] = params.contexts();
    if let Some(context) = repetition {
        let penalty = f64::from(params.repetition_penalty);
        each(history, context, |id, _| {
            change(logits, id, |x| if x < 0.0 { x * penalty } else { x / penalty });
        })?;
    }
    if let Some(context) = presence {
        let penalty = f64::from(params.presence_penalty);
        each(history, context, |id, _| change(logits, id, |x| x - penalty))?;
    }
    if let Some(context) = frequency {
        let penalty = f64::from(params.frequency_penalty);
        each(history, context, |id, count| change(logits, id, |x| x - penalty * count as f64))?;
    }
    Ok(())
}

fn each(history: &History, context: usize, mut apply: impl FnMut(u32, u64)) -> Result<()> {
    let counts = history.counts(context).ok_or_else(|| {
        Error::new(Kind::Bug, format!("the history keeps no window of {context} tokens"))
            .hint("make the history from the parameters of the same row")
    })?;
    for (id, count) in counts {
        apply(id, count);
    }
    Ok(())
}

/// One formula on one logit. One operation in f64, rounded to f32, equals that operation in f32.
fn change(logits: &mut [f32], id: u32, formula: impl Fn(f64) -> f64) {
    let Some(logit) = usize::try_from(id).ok().and_then(|i| logits.get_mut(i)) else { return };
    let after = formula(f64::from(*logit)) as f32;
    *logit = if logit.is_finite() && after == f32::INFINITY { f32::MAX } else { after };
}
