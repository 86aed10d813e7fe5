//! Which instruction sets this machine has. An [`Isa`] cannot name one that is missing.

/// An instruction set that kernels are compiled for and that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(pub(crate) Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Scalar,
    /// Elsewhere than on aarch64 only in this crate's tests, over plain stand-ins.
    #[cfg(any(target_arch = "aarch64", test))]
    Neon,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512, and a unit for products of tiles of bytes.
    #[cfg(target_arch = "x86_64")]
    Amx,
}

impl Isa {
    /// Plain Rust: every machine has it.
    pub const SCALAR: Self = Self(Kind::Scalar);

    /// The best instruction set of this machine.
    pub fn detect() -> Self {
        Self::available().last().unwrap_or(Self::SCALAR)
    }

    /// Every instruction set of this machine, from the plainest to the best.
    pub fn available() -> impl Iterator<Item = Self> {
        Kind::ALL.iter().filter(|kind| kind.exists()).map(|&kind| Self(kind))
    }

    /// Its name: `scalar`, `neon`, `avx2`, `avx512`, `amx`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Scalar => "scalar",
            #[cfg(any(target_arch = "aarch64", test))]
            Kind::Neon => "neon",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => "amx",
        }
    }
}

impl Kind {
    const ALL: &[Self] = &[
        Self::Scalar,
        #[cfg(any(target_arch = "aarch64", test))]
        Self::Neon,
        #[cfg(target_arch = "x86_64")]
        Self::Avx2,
        #[cfg(target_arch = "x86_64")]
        Self::Avx512,
        #[cfg(target_arch = "x86_64")]
        Self::Amx,
    ];

    fn exists(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(any(target_arch = "aarch64", test))]
            Self::Neon => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.exists()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Amx => Self::Avx512.exists() && super::amx::exists(),
        }
    }
}
