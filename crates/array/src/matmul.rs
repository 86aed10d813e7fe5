//! interim
/// isa
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Isa { Scalar, Avx2, Avx512, Neon }
impl Isa {
    /// detect
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl")&& is_x86_feature_detected!("avx512dq") { return Self::Avx512; }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") { return Self::Avx2; }
        }
        Self::Scalar
    }
}
