//! `longrun convert`: a model in the layout of MLX, quantised or not.

use std::borrow::Cow;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use longrun_lm::adapter::Adapter;
use longrun_lm::array::quant::encode::Float;
use longrun_lm::checkpoint::Checkpoint;
use longrun_lm::convert::{Mixed, Mode, Options, Quantize, convert};
use longrun_lm::{Error, Result};

use crate::args::{ConvertArgs, DtypeName, MixedName, QuantizeName};
use crate::{model, show};

pub(crate) fn run(args: &ConvertArgs) -> Result<ExitCode> {
    let start = Instant::now();
    let named = Path::new(&args.model);
    let quantize = quantize(args)?;
    let embedded = args.model == "demo" && !named.exists();
    let path = if embedded { Cow::Borrowed(named) } else { model::place(named)? };
    let mut source =
        if embedded { Checkpoint::from_embedded(model::DEMO)? } else { Checkpoint::open(&path)? };
    if let Some(folder) = &args.adapter.adapter {
        source = source.with_adapter(Adapter::open(folder)?);
    }
    let dtype = args.dtype.map(|dtype| match dtype {
        DtypeName::Float32 => Float::F32,
        DtypeName::Bfloat16 => Float::BF16,
        DtypeName::Float16 => Float::F16,
    });
    let options = Options { quantize, dtype, folder: Some(&*path).filter(|path| path.is_dir()) };
    let bar = show::bar("converting");
    let report = |done: usize, all: usize| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    };
    let written = convert(&source, &args.out, &options, &report);
    bar.finish_and_clear();
    let written = written?;
    written.notes.iter().for_each(|note| show::note(&format!("longrun: {note}")));
    let bits = 8.0 * written.bytes as f64 / written.parameters.max(1) as f64;
    show::out(&format!(
        "{}: {} in {} {}, {} parameters of {bits:.2} bits, {:.1} s\n",
        args.out.display(),
        show::bytes(written.bytes),
        written.files,
        if written.files == 1 { "file" } else { "files" },
        written.parameters,
        start.elapsed().as_secs_f64(),
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn quantize(args: &ConvertArgs) -> Result<Option<Quantize>> {
    if let Some(recipe) = args.mixed {
        let recipe = match recipe {
            MixedName::Mixed2And6 => Mixed::Mixed2And6,
            MixedName::Mixed3And4 => Mixed::Mixed3And4,
            MixedName::Mixed3And6 => Mixed::Mixed3And6,
            MixedName::Mixed4And6 => Mixed::Mixed4And6,
        };
        return Quantize::mixed(recipe, args.group_size).map(Some);
    }
    let name = match args.quantize {
        None if args.group_size.is_some() => {
            let hint = "add --quantize or --mixed";
            return Err(Error::usage("nothing is quantised").at("--group-size").hint(hint));
        }
        None => return Ok(None),
        Some(QuantizeName::Q2) => "q2",
        Some(QuantizeName::Q3) => "q3",
        Some(QuantizeName::Q4) => "q4",
        Some(QuantizeName::Q5) => "q5",
        Some(QuantizeName::Q6) => "q6",
        Some(QuantizeName::Q8) => "q8",
        Some(QuantizeName::Mxfp4) => "mxfp4",
        Some(QuantizeName::Mxfp8) => "mxfp8",
        Some(QuantizeName::Nvfp4) => "nvfp4",
    };
    Mode::new(name, args.group_size).map(|mode| Some(Quantize::all(mode)))
}
