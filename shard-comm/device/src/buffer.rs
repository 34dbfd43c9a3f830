//! Storage: [`Buffer`], immutable and shared, and [`BufferMut`], uniquely owned.
//!
//! A result is written through a `BufferMut` and then frozen. From then on it can be cloned, sliced and read by
//! other ranks' threads. The memory lives as long as any holder: a leaked holder or a rank that died cannot free it early.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::pool::{BLOCK, Block, Pool, poison};
use crate::{DType, DeviceError, DeviceKind, DeviceRef, Element, Host, Result};

/// Immutable shared elements on a device. Cloning and slicing copy nothing.
///
/// ```
/// use shard_device::Host;
/// # fn main() -> Result<(), shard_device::DeviceError> {
/// let host = Host::new();
/// let numbers = host.upload_slice(&[1.0f32, 2.0, 3.0])?;
/// assert_eq!(numbers.slice(1..3).as_slice::<f32>()?, &[2.0, 3.0]);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Buffer {
    storage: Arc<Storage>,
    dtype: DType,
    offset: usize,
    len: usize,
}

impl Buffer {
    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// How many elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the elements.
    pub fn bytes(&self) -> usize {
        self.len * self.dtype.size()
    }

    /// The device whose memory this is.
    pub fn device(&self) -> &DeviceRef {
        &self.storage.device
    }

    /// Part of the buffer, sharing its memory.
    ///
    /// # Panics
    /// If the range is not inside `0..len`, as with slices. [`Buffer::try_slice`] returns an error instead.
    #[track_caller]
    pub fn slice(&self, range: Range<usize>) -> Self {
        match self.try_slice(range) {
            Ok(part) => part,
            Err(error) => panic!("{error}"),
        }
    }

    /// Part of the buffer, sharing its memory.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] if the range is not inside `0..len`.
    pub fn try_slice(&self, range: Range<usize>) -> Result<Self> {
        if range.start > range.end || range.end > self.len {
            return Err(DeviceError::invalid(
                "slice",
                format!("a range inside 0..{}", self.len),
                format!("{range:?}"),
                "check the range against the length",
            ));
        }
        Ok(Self {
            storage: Arc::clone(&self.storage),
            dtype: self.dtype,
            offset: self.offset + range.start,
            len: range.end - range.start,
        })
    }

    /// The elements, if the host can read this memory.
    ///
    /// # Errors
    /// [`DeviceError::HostOnly`] if it cannot; [`DeviceError::Invalid`] if `T` is not the element type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        check_type::<T>("as_slice", self.dtype)?;
        self.bytes_of("as_slice", 0..self.len)
            .map(bytemuck::cast_slice)
    }

    /// The bytes of the elements, if the host can read this memory.
    ///
    /// # Errors
    /// [`DeviceError::HostOnly`] if it cannot.
    pub fn as_bytes(&self) -> Result<&[u8]> {
        self.bytes_of("as_bytes", 0..self.len)
    }

    /// The bytes of these elements, if the host can read this memory.
    ///
    /// The caller has checked that the range lies within the buffer.
    #[inline]
    pub(crate) fn bytes_of(&self, op: &'static str, elements: Range<usize>) -> Result<&[u8]> {
        match &self.storage.memory {
            Memory::Host(memory) => Ok(memory.part(byte_range(self.dtype, self.offset, elements))),
            Memory::Opaque { .. } => Err(host_only(op, &self.storage.device)),
        }
    }

    /// The elements as a vector, downloaded if need be.
    ///
    /// # Errors
    /// As [`Device::download`](crate::Device::download); [`DeviceError::Invalid`] if `T` is not the element type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.device().download_vec(self)
    }

    /// The same memory for writing, if nobody else holds it.
    ///
    /// # Errors
    /// The buffer, unchanged, if it is shared: the caller then has to copy it.
    pub fn into_mut(self) -> Result<BufferMut, Self> {
        let Self {
            storage,
            dtype,
            offset,
            len,
        } = self;
        match Arc::try_unwrap(storage) {
            Ok(storage) => Ok(BufferMut {
                storage,
                dtype,
                offset,
                len,
            }),
            Err(storage) => Err(Self {
                storage,
                dtype,
                offset,
                len,
            }),
        }
    }

    /// Whether there is nothing in its memory but these elements.
    pub fn fills_memory(&self) -> bool {
        match &self.storage.memory {
            Memory::Host(memory) => memory.bytes == self.bytes(),
            Memory::Opaque { bytes, .. } => *bytes == self.bytes(),
        }
    }

    /// Whether both are the same elements of the same memory.
    pub fn ptr_eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
            && (self.offset, self.len, self.dtype) == (other.offset, other.len, other.dtype)
    }

    /// Where this buffer begins in its memory, in elements; for implementations of devices.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Whether this is all of some memory of the [`Host`](crate::Host): then whoever keeps it keeps no other elements alive.
    pub fn is_all_of_host_memory(&self) -> bool {
        let is_host = self.storage.device.kind() == DeviceKind::Host;
        is_host && self.opaque().is_none() && self.fills_memory()
    }

    /// The device's own handle of the memory, `None` for host memory; for implementations of devices.
    pub fn opaque(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.storage.opaque()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Buffer({} x {} on {})",
            self.dtype,
            self.len,
            self.device().name()
        )
    }
}

/// Uniquely owned elements on a device, to be written and then frozen into a [`Buffer`].
///
/// ```
/// use shard_device::{DType, Host};
/// # fn main() -> Result<(), shard_device::DeviceError> {
/// let mut out = Host::new().alloc(DType::I64, 3)?;
/// out.as_mut_slice::<i64>()?.copy_from_slice(&[1, 2, 3]);
/// let out = out.freeze();
/// assert_eq!(out.to_vec::<i64>()?, [1, 2, 3]);
/// assert!(out.into_mut().is_ok());
/// # Ok(()) }
/// ```
pub struct BufferMut {
    storage: Storage,
    dtype: DType,
    offset: usize,
    len: usize,
}

impl BufferMut {
    /// A buffer over a device's own memory handle; for implementations of devices.
    pub fn from_opaque(
        device: DeviceRef,
        dtype: DType,
        len: usize,
        memory: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let bytes = len.saturating_mul(dtype.size());
        Self::over(device, dtype, len, Memory::Opaque { memory, bytes })
    }

    #[inline]
    pub(crate) fn from_host(
        device: DeviceRef,
        dtype: DType,
        len: usize,
        memory: HostMemory,
    ) -> Self {
        Self::over(device, dtype, len, Memory::Host(memory))
    }

    #[inline]
    fn over(device: DeviceRef, dtype: DType, len: usize, memory: Memory) -> Self {
        Self {
            storage: Storage { device, memory },
            dtype,
            offset: 0,
            len,
        }
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// How many elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the elements.
    pub fn bytes(&self) -> usize {
        self.len * self.dtype.size()
    }

    /// The device whose memory this is.
    pub fn device(&self) -> &DeviceRef {
        &self.storage.device
    }

    /// The elements, if the host can reach this memory.
    ///
    /// # Errors
    /// [`DeviceError::HostOnly`] if it cannot; [`DeviceError::Invalid`] if `T` is not the element type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        check_type::<T>("as_mut_slice", self.dtype)?;
        self.bytes_of_mut("as_mut_slice", 0..self.len)
            .map(bytemuck::cast_slice_mut)
    }

    /// The bytes of the elements, if the host can reach this memory.
    ///
    /// # Errors
    /// [`DeviceError::HostOnly`] if it cannot.
    pub fn as_mut_bytes(&mut self) -> Result<&mut [u8]> {
        self.bytes_of_mut("as_mut_bytes", 0..self.len)
    }

    /// The bytes of these elements, if the host can reach this memory.
    ///
    /// The caller has checked that the range lies within the buffer.
    #[inline]
    pub(crate) fn bytes_of_mut(
        &mut self,
        op: &'static str,
        elements: Range<usize>,
    ) -> Result<&mut [u8]> {
        let bytes = byte_range(self.dtype, self.offset, elements);
        match &mut self.storage.memory {
            Memory::Host(memory) => Ok(memory.part_mut(bytes)),
            Memory::Opaque { .. } => Err(host_only(op, &self.storage.device)),
        }
    }

    /// Changes the length in place. Does nothing and returns false unless the buffer is all of its memory and the memory is the
    /// host's.
    ///
    /// # Errors
    /// The number of bytes asked for, if the system does not have them.
    pub(crate) fn resize_host(&mut self, pool: &Pool, len: usize) -> Result<bool, usize> {
        let bytes = len.saturating_mul(self.dtype.size());
        let whole = self.offset == 0;
        match &mut self.storage.memory {
            Memory::Host(memory) if whole && memory.bytes == self.len * self.dtype.size() => {
                if !memory.resize(pool, bytes) {
                    return Err(bytes);
                }
                self.len = len;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Ends writing: the elements become immutable and can be shared.
    #[inline]
    pub fn freeze(self) -> Buffer {
        let Self {
            storage,
            dtype,
            offset,
            len,
        } = self;
        Buffer {
            storage: Arc::new(storage),
            dtype,
            offset,
            len,
        }
    }

    /// Where this buffer begins in its memory, in elements; for implementations of devices.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The device's own handle of the memory, `None` for host memory; for implementations of devices.
    pub fn opaque(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.storage.opaque()
    }
}

impl fmt::Debug for BufferMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "BufferMut({} x {} on {})",
            self.dtype,
            self.len,
            self.device().name()
        )
    }
}

fn check_type<T: Element>(op: &'static str, dtype: DType) -> Result<()> {
    if T::DTYPE == dtype {
        Ok(())
    } else {
        Err(DeviceError::dtype(op, dtype, T::DTYPE))
    }
}

/// The bytes of these elements within the memory, for a buffer that begins `offset` elements into its memory.
fn byte_range(dtype: DType, offset: usize, elements: Range<usize>) -> Range<usize> {
    let size = dtype.size();
    (offset + elements.start) * size..(offset + elements.end) * size
}

#[cold]
fn host_only(op: &'static str, device: &DeviceRef) -> DeviceError {
    let device = device.name();
    DeviceError::HostOnly { op, device }
}

/// Memory and the device that owns it.
struct Storage {
    device: DeviceRef,
    memory: Memory,
}

enum Memory {
    /// Memory of the host, which the jobs of every device and all ranks of the process can read.
    Host(HostMemory),
    /// Memory that only its device understands.
    Opaque {
        memory: Arc<dyn Any + Send + Sync>,
        bytes: usize,
    },
}

impl Storage {
    fn opaque(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        match &self.memory {
            Memory::Host(_) => None,
            Memory::Opaque { memory, .. } => Some(memory),
        }
    }
}

impl Drop for Storage {
    /// Memory of a host returns to its pool, on whichever thread. The host is held by count anyway, so its memory does not count the
    /// pool too.
    fn drop(&mut self) {
        if let Memory::Host(memory) = &mut self.memory {
            let device: &dyn Any = &*self.device;
            if let Some(host) = device.downcast_ref::<Host>() {
                host.take_back(std::mem::take(memory));
            }
        }
    }
}

/// Host memory of a pool, to which its owner gives it back.
#[derive(Default)]
pub(crate) struct HostMemory {
    blocks: Vec<Block>,
    /// Where the elements begin, in bytes: at the first aligned address.
    start: usize,
    bytes: usize,
}

impl HostMemory {
    /// Initialised memory for `bytes` bytes, or `None` if the system has no more.
    #[inline]
    pub(crate) fn take(pool: &Pool, bytes: usize) -> Option<Self> {
        let blocks = pool.take(bytes)?;
        Some(Self {
            start: aligned_start(&blocks),
            blocks,
            bytes,
        })
    }

    /// Returns to the pool that it is of.
    pub(crate) fn give(self, pool: &Pool) {
        pool.give(self.blocks, self.bytes);
    }

    /// Makes room for `bytes` bytes, keeping what both sizes have; false, and no change, if the system has no more.
    pub(crate) fn resize(&mut self, pool: &Pool, bytes: usize) -> bool {
        let kept = self.start..self.start + self.bytes.min(bytes);
        if !pool.resize(&mut self.blocks, self.bytes, bytes) {
            return false;
        }
        self.bytes = bytes;
        let start = aligned_start(&self.blocks);
        if start != self.start && !kept.is_empty() {
            let all: &mut [u8] = bytemuck::cast_slice_mut(&mut self.blocks);
            all.copy_within(kept.clone(), start);
        }
        self.start = start;
        if pool.poisons() {
            poison(&mut self.bytes_mut()[kept.len()..]);
        }
        true
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.part(0..self.bytes)
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.part_mut(0..self.bytes)
    }

    /// The bytes in this range.
    #[inline]
    fn part(&self, bytes: Range<usize>) -> &[u8] {
        let all: &[u8] = bytemuck::cast_slice(&self.blocks);
        &all[self.start + bytes.start..self.start + bytes.end]
    }

    #[inline]
    fn part_mut(&mut self, bytes: Range<usize>) -> &mut [u8] {
        let all: &mut [u8] = bytemuck::cast_slice_mut(&mut self.blocks);
        &mut all[self.start + bytes.start..self.start + bytes.end]
    }
}

/// The first byte of a pool's memory at an address divisible by [`BLOCK`].
fn aligned_start(blocks: &[Block]) -> usize {
    if blocks.is_empty() {
        return 0;
    }
    // Alignment is for speed only: any start within the first block is right.
    let start = blocks.as_ptr().cast::<u8>().align_offset(BLOCK);
    if start < BLOCK { start } else { 0 }
}
