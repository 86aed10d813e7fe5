//! NVRTC, the library that compiles kernels: found at run time, and called.
//!
//! Owns the search for it and its calls. Refuses to keep what it compiles: `module.rs` does.

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use libloading::{Library, Symbol};

/// Names the library, where the loader does not find it.
const VARIABLE: &str = "LONGRUN_NVRTC";

/// Names of the library, the newest first.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

type Program = *mut c_void;
type Strings = *const *const c_char;

/// The library.
pub(super) struct Nvrtc {
    library: Library,
    version: (i32, i32),
}

/// A text with its name: a source, or a header.
pub(super) struct Text {
    pub(super) name: &'static str,
    pub(super) text: Cow<'static, str>,
}

impl Nvrtc {
    /// Finds the library.
    ///
    /// # Errors
    /// It isn't there: what to do is said.
    pub(super) fn find() -> Result<Self, String> {
        let named = std::env::var(VARIABLE).ok();
        let names = named.iter().map(String::as_str).chain(NAMES);
        // SAFETY: NVRTC's initialisers may run at any time, on any thread.
        let library = names.into_iter().find_map(|name| unsafe { Library::new(name).ok() });
        let library = library.ok_or_else(|| {
            format!(
                "kernels can't be compiled without NVRTC ({}); install it (`pip install \
                 nvidia-cuda-nvrtc`, or the CUDA toolkit), and name its path in {VARIABLE} if the \
                 loader does not find it",
                NAMES[..2].join(" or ")
            )
        })?;
        let mut new = Self { library, version: (0, 0) };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the signature is that of the function, and the numbers are written into the integers.
        let done = unsafe {
            type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
            new.get::<Version>(c"nvrtcVersion")?(&mut major, &mut minor)
        };
        new.check("tell its version", done)?;
        new.version = (major, minor);
        Ok(new)
    }

    /// Its version.
    pub(super) fn version(&self) -> (i32, i32) {
        self.version
    }

    /// # Safety
    /// `F` is the type of the function.
    unsafe fn get<F>(&self, name: &CStr) -> Result<Symbol<'_, F>, String> {
        // SAFETY: promised by the caller.
        let found = unsafe { self.library.get(name.to_bytes_with_nul()) };
        found.map_err(|error| format!("NVRTC is damaged or too old: {error}"))
    }

    fn check(&self, what: &str, result: c_int) -> Result<(), String> {
        if result == 0 {
            return Ok(());
        }
        // SAFETY: the signature is that of the function, which returns a static string.
        let text = unsafe {
            let text = self
                .get::<unsafe extern "C" fn(c_int) -> *const c_char>(c"nvrtcGetErrorString")?(
                result,
            );
            CStr::from_ptr(text).to_string_lossy()
        };
        Err(format!("NVRTC can't {what}: {text}"))
    }

    /// Compiles a source for an architecture (`sm_90a`) to a cubin.
    ///
    /// # Errors
    /// The source is wrong: the compiler's log.
    pub(super) fn compile(
        &self,
        source: &Text,
        headers: &[Text],
        architecture: &str,
    ) -> Result<Vec<u8>, String> {
        let owned = |text: &str| CString::new(text).map_err(|_| "a zero in a source".to_owned());
        let [text, name] = [owned(&source.text)?, owned(source.name)?];
        let texts = headers.iter().map(|h| owned(&h.text)).collect::<Result<Vec<_>, _>>()?;
        let names = headers.iter().map(|h| owned(h.name)).collect::<Result<Vec<_>, _>>()?;
        let pointers = |all: &[CString]| all.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let (texts_at, names_at) = (pointers(&texts), pointers(&names));
        let mut program = ptr::null_mut();
        // SAFETY: the signature is that of the function; all strings live until it returns.
        let made = unsafe {
            type Create = unsafe extern "C" fn(
                *mut Program,
                *const c_char,
                *const c_char,
                c_int,
                Strings,
                Strings,
            ) -> c_int;
            let count = headers.len() as c_int;
            let create = self.get::<Create>(c"nvrtcCreateProgram")?;
            let (text, name) = (text.as_ptr(), name.as_ptr());
            create(&mut program, text, name, count, texts_at.as_ptr(), names_at.as_ptr())
        };
        self.check("read a source", made)?;
        let options = [format!("--gpu-architecture={architecture}"), "--std=c++17".into()];
        let options = options.iter().map(|o| owned(o)).collect::<Result<Vec<_>, _>>()?;
        let cubin = self.build(program, &pointers(&options));
        // SAFETY: the signature is that of the function, and the program is not used after it.
        unsafe {
            type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
            self.get::<Destroy>(c"nvrtcDestroyProgram")?(&mut program);
        }
        cubin.map_err(|error| format!("{} for {architecture}: {error}", source.name))
    }

    fn build(&self, program: Program, options: &[*const c_char]) -> Result<Vec<u8>, String> {
        // SAFETY: the signature is that of the function; the caller keeps program and options alive.
        let done = unsafe {
            type Compile = unsafe extern "C" fn(Program, c_int, Strings) -> c_int;
            let compile = self.get::<Compile>(c"nvrtcCompileProgram")?;
            compile(program, options.len() as c_int, options.as_ptr())
        };
        if let Err(error) = self.check("compile", done) {
            let log = self.bytes(program, c"nvrtcGetProgramLogSize", c"nvrtcGetProgramLog");
            let log = log.unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            return Err(format!("{error}\n{}", log.trim_end_matches(['\0', '\n'])));
        }
        self.bytes(program, c"nvrtcGetCUBINSize", c"nvrtcGetCUBIN")
    }

    /// What one function fills that another has told the size of.
    fn bytes(&self, program: Program, size: &CStr, fill: &CStr) -> Result<Vec<u8>, String> {
        let mut len = 0_usize;
        // SAFETY: the signature is that of the functions that are named; the size is written into the integer.
        let done = unsafe {
            type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
            self.get::<Size>(size)?(program, &mut len)
        };
        self.check("tell a size", done)?;
        let mut bytes = vec![0_u8; len];
        // SAFETY: the signature is that of the functions that are named, who write as many bytes as they have told.
        let done = unsafe {
            type Fill = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
            self.get::<Fill>(fill)?(program, bytes.as_mut_ptr().cast())
        };
        self.check("hand over what it made", done)?;
        Ok(bytes)
    }
}
