//! Compiled kernels on the device: loaded, found by name, and queued.
//!
//! Owns the calls of the driver for that. As in `driver.rs`, the context is current. Refuses to know where cubins come
//! from.

use std::ffi::CString;
use std::ptr;

use cudarc::driver::sys;

use super::driver::{Stream, check};

/// Compiled kernels on the device.
pub(super) struct Module(sys::CUmodule);

// SAFETY: modules of the driver may be used by any thread.
unsafe impl Send for Module {}

/// A kernel; it lives as long as its module.
#[derive(Clone, Copy)]
pub(super) struct Function(sys::CUfunction);

// SAFETY: as for modules.
unsafe impl Send for Function {}

impl Module {
    /// Loads a cubin.
    pub(super) fn new(cubin: &[u8]) -> Result<Self, String> {
        let mut module = ptr::null_mut();
        // SAFETY: the driver checks the image's headers; what is loaded came from the compiler, or from its cache.
        let done = unsafe { sys::cuModuleLoadData(&mut module, cubin.as_ptr().cast()) };
        check("load kernels", done)?;
        Ok(Self(module))
    }

    /// The kernel `name`.
    pub(super) fn function(&self, name: &str) -> Result<Function, String> {
        let (mut function, c_name) = (ptr::null_mut(), CString::new(name));
        let c_name = c_name.map_err(|_| format!("{name:?} is no name of a kernel"))?;
        // SAFETY: the module is alive, and the function is written into the pointer.
        let done = unsafe { sys::cuModuleGetFunction(&mut function, self.0, c_name.as_ptr()) };
        check(&format!("find the kernel {name}"), done)?;
        Ok(Function(function))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: it was loaded once. A failure leaves it to the end of the process.
        unsafe {
            let _ = sys::cuModuleUnload(self.0);
        }
    }
}

impl Function {
    /// Lets blocks of the kernel take as much dynamic shared memory.
    pub(super) fn allow_shared(&self, bytes: usize) -> Result<(), String> {
        let what = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is alive.
        let done = unsafe { sys::cuFuncSetAttribute(self.0, what, bytes as i32) };
        check("give shared memory to a kernel", done)
    }

    /// Queues the kernel.
    ///
    /// # Safety
    /// `arguments` point to what the kernel's signature says, and the kernel touches nothing but what whoever queues it
    /// may touch.
    pub(super) unsafe fn launch(
        &self,
        stream: &Stream,
        (grid, block, shared): ([u32; 3], [u32; 3], u32),
        arguments: &mut [*mut std::ffi::c_void],
    ) -> Result<(), String> {
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        // SAFETY: promised by the caller. The driver copies the arguments before it returns.
        let done = unsafe {
            let (arguments, more) = (arguments.as_mut_ptr(), ptr::null_mut());
            sys::cuLaunchKernel(self.0, gx, gy, gz, bx, by, bz, shared, stream.0, arguments, more)
        };
        check("launch a kernel", done)
    }
}
