//! Kernels written once over lanes of numbers and compiled for each instruction set.
//!
//! Owns the macro that does it and the elementary functions that vectorise. The order of every sum is written out,
//! so the instruction set changes the speed and not one bit of the result.

pub(crate) use crate::matmul::Isa;

/// Defines `fn name(isa, args..)`: the body is compiled once plain and once for each instruction set that can be
/// found at run time.
macro_rules! per_isa {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    ) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(isa: $crate::cpu::lanes::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
                fn avx512($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                match isa.0 {
                    $crate::matmul::Kind::Avx512 | $crate::matmul::Kind::Amx => {
                        // SAFETY: an `Isa` is only made where the processor has it.
                        return unsafe { avx512($($arg),*) };
                    }
                    // SAFETY: as above.
                    $crate::matmul::Kind::Avx2 => return unsafe { avx2($($arg),*) },
                    _ => {}
                }
            }
            let _ = isa;
            body($($arg),*)
        }
    };
}
pub(crate) use per_isa;

/// Numbers that one step of a reduction takes side by side.
pub(crate) const LANES: usize = 16;

/// `e^x` to about one unit in the last place; 0 below -87.3.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    // 1.5 * 2^23: adding it rounds to an integer, ties to even, and leaves that in the low bits. A cast would check
    // for what is no number, lane by lane.
    const ROUND: f32 = 12_582_912.0;
    let y = x.clamp(-87.3, 88.7);
    let rounded = y * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (-n).mul_add(LN2_HI, y);
    let r = (-n).mul_add(LN2_LO, r);
    let mut p = 1.987_569_1e-4_f32;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p.mul_add(r, c);
    }
    let e = p.mul_add(r * r, r) + 1.0;
    // 2^n in two factors: n reaches 128.
    let n = rounded.to_bits().cast_signed().wrapping_sub(ROUND.to_bits().cast_signed());
    let half = n >> 1;
    let pow2 = |k: i32| f32::from_bits((k.wrapping_add(127) << 23).cast_unsigned());
    let e = e * pow2(half) * pow2(n - half);
    if x < -87.3 { 0.0 } else { e }
}

/// `1 / (1 + e^-x)`
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `tanh x`, to about 1e-7.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

/// The sum of `f(i)` for `i < n`: four accumulators of eight lanes, then the accumulators in order, then the lanes in
/// order. Any fixed order serves; this one is that of the library that made the reference vectors.
#[inline(always)]
pub(crate) fn sum(n: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut acc = [[0.0f32; 8]; 4];
    let whole = n - n % 32;
    let mut i = 0;
    while i < whole {
        for (a, acc) in acc.iter_mut().enumerate() {
            for (l, lane) in acc.iter_mut().enumerate() {
                *lane += f(i + a * 8 + l);
            }
        }
        i += 32;
    }
    let [mut lanes, rest @ ..] = acc;
    for acc in rest {
        lanes.iter_mut().zip(acc).for_each(|(l, a)| *l += a);
    }
    for i in whole..n {
        lanes[i % 8] += f(i);
    }
    lanes.into_iter().fold(0.0, |sum, lane| sum + lane)
}

/// The lanes added pairwise.
#[inline(always)]
pub(crate) fn fold(mut lane: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for l in 0..width {
            lane[l] += lane[l + width];
        }
        width /= 2;
    }
    lane[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elementary_functions_are_close_to_the_library() {
        for i in -200_000..200_000 {
            let x = i as f32 * 5e-4;
            let (e, want) = (exp(x), f64::from(x).exp());
            if x > -87.0 && x < 88.0 {
                assert!(((f64::from(e) - want) / want).abs() < 2.5e-7, "exp({x}) = {e}, {want}");
            }
            assert!((f64::from(tanh(x)) - f64::from(x).tanh()).abs() < 2.5e-7);
            assert!((f64::from(sigmoid(x)) - 1.0 / (1.0 + f64::from(-x).exp())).abs() < 2.5e-7);
        }
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(90.0) > 3e38 || exp(90.0).is_infinite());
    }

    #[test]
    fn sums_are_sums() {
        for n in 0..100 {
            assert_eq!(sum(n, |i| i as f32), (0..n).sum::<usize>() as f32);
        }
    }
}
