// SPDX-License-Identifier: Apache-2.0
// The functions of torch's stable C ABI that ladder calls, declared here so that a build needs no
// torch. All of them are in torch 2.11 and promised to stay. tests/package/test_shim.py compares
// each declaration with the headers of the torch that is installed.
// Source: "LibTorch Stable ABI",
// https://docs.pytorch.org/docs/stable/notes/libtorch_stable_abi.html
#pragma once

#include <cstddef>
#include <cstdint>

/// An argument or a result of an op: a number in its low bytes, or the address of what it owns.
using StableIValue = std::uint64_t;
using AOTITorchError = std::int32_t;  ///< 0, or a failure whose text is in torch

struct AtenTensorOpaque;
using AtenTensorHandle = AtenTensorOpaque*;
class TorchLibraryOpaque;
using TorchLibraryHandle = TorchLibraryOpaque*;
struct StableListOpaque;
using StableListHandle = StableListOpaque*;
struct StringOpaque;
using StringHandle = StringOpaque*;

extern "C" {

// --- numbers of torch's enumerations
// --------------------------------------------------------------
std::int32_t aoti_torch_device_type_cpu();
std::int32_t aoti_torch_device_type_cuda();
std::int32_t aoti_torch_dtype_bfloat16();
std::int32_t aoti_torch_dtype_bool();
std::int32_t aoti_torch_dtype_complex128();
std::int32_t aoti_torch_dtype_complex32();
std::int32_t aoti_torch_dtype_complex64();
std::int32_t aoti_torch_dtype_float16();
std::int32_t aoti_torch_dtype_float32();
std::int32_t aoti_torch_dtype_float64();
std::int32_t aoti_torch_dtype_float8_e4m3fn();
std::int32_t aoti_torch_dtype_float8_e4m3fnuz();
std::int32_t aoti_torch_dtype_float8_e5m2();
std::int32_t aoti_torch_dtype_float8_e5m2fnuz();
std::int32_t aoti_torch_dtype_int16();
std::int32_t aoti_torch_dtype_int32();
std::int32_t aoti_torch_dtype_int64();
std::int32_t aoti_torch_dtype_int8();
std::int32_t aoti_torch_dtype_uint16();
std::int32_t aoti_torch_dtype_uint32();
std::int32_t aoti_torch_dtype_uint64();
std::int32_t aoti_torch_dtype_uint8();
std::int32_t aoti_torch_layout_strided();
std::int32_t aoti_torch_memory_format_contiguous_format();

// --- tensors: a handle that a function returns belongs to the caller
// ------------------------------
AOTITorchError aoti_torch_new_tensor_handle(AtenTensorHandle of, AtenTensorHandle* result);
AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle tensor);
AOTITorchError aoti_torch_get_dim(AtenTensorHandle tensor, std::int64_t* result);
AOTITorchError aoti_torch_get_numel(AtenTensorHandle tensor, std::int64_t* result);
AOTITorchError aoti_torch_get_size(AtenTensorHandle tensor, std::int64_t dimension,
                                   std::int64_t* result);
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle tensor, std::int32_t* result);
AOTITorchError aoti_torch_get_device_type(AtenTensorHandle tensor, std::int32_t* result);
AOTITorchError aoti_torch_get_device_index(AtenTensorHandle tensor, std::int32_t* result);
AOTITorchError aoti_torch_is_contiguous(AtenTensorHandle tensor, bool* result);
AOTITorchError torch_get_const_data_ptr(AtenTensorHandle tensor, const void** result);
AOTITorchError torch_get_mutable_data_ptr(AtenTensorHandle tensor, void** result);
AOTITorchError aoti_torch_empty_strided(std::int64_t dimensions, const std::int64_t* sizes,
                                        const std::int64_t* strides, std::int32_t dtype,
                                        std::int32_t device_type, std::int32_t device_index,
                                        AtenTensorHandle* result);
/// A view of memory that stays the caller's.
AOTITorchError aoti_torch_create_tensor_from_blob_v2(
    void* data, std::int64_t dimensions, const std::int64_t* sizes, const std::int64_t* strides,
    std::int64_t storage_offset, std::int32_t dtype, std::int32_t device_type,
    std::int32_t device_index, AtenTensorHandle* result, std::int32_t layout,
    const std::uint8_t* opaque_metadata, std::int64_t opaque_metadata_size);

// --- lists and strings
// ----------------------------------------------------------------------------
AOTITorchError torch_new_list_reserve_size(std::size_t size, StableListHandle* result);
AOTITorchError torch_delete_list(StableListHandle list);
AOTITorchError torch_list_size(StableListHandle list, std::size_t* result);
AOTITorchError torch_list_get_item(StableListHandle list, std::size_t index, StableIValue* result);
AOTITorchError torch_list_push_back(StableListHandle list, StableIValue element);
AOTITorchError torch_new_string_handle(const char* data, std::size_t length, StringHandle* result);
AOTITorchError torch_delete_string(StringHandle string);
AOTITorchError torch_string_length(StringHandle string, std::size_t* result);
AOTITorchError torch_string_c_str(StringHandle string, const char** result);

// --- ops
// ------------------------------------------------------------------------------------------
AOTITorchError aoti_torch_library_init_fragment(const char* name, const char* file,
                                                std::uint32_t line, TorchLibraryHandle* result);
AOTITorchError aoti_torch_library_init_impl(const char* name, const char* key, const char* file,
                                            std::uint32_t line, TorchLibraryHandle* result);
AOTITorchError aoti_torch_library_def(TorchLibraryHandle library, const char* schema);
AOTITorchError torch_library_impl(TorchLibraryHandle library, const char* name,
                                  void (*function)(StableIValue*, std::uint64_t, std::uint64_t),
                                  std::uint64_t extension_build_version);
AOTITorchError aoti_torch_delete_library_object(TorchLibraryHandle library);
/// Takes the arguments off `stack` and leaves the results there.
AOTITorchError torch_call_dispatcher(const char* op, const char* overload, StableIValue* stack,
                                     std::uint64_t extension_build_version);
AOTITorchError torch_parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain_size,
                                  void (*body)(std::int64_t begin, std::int64_t end, void* context),
                                  void* context);

/// Text of this thread's last failure. From torch 2.13 on; null before.
[[gnu::weak]] const char* torch_exception_get_what_without_backtrace();

}  // extern "C"
