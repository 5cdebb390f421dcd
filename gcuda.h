/*
gcuda - tensor graphs on NVIDIA GPUs and on the CPU, in one C header                      version 0.1.0, MIT

A program describes a computation as a graph of tensor operations, gives the tensors memory, and has a backend compute
it: inference, training with automatic differentiation, quantized weights down to 1.6 bits. Names and meanings are those
of ggml with the prefix replaced; README.md lists the differences. Version 0.1 computes on the CPU. The interfaces are
those that the CUDA backend will use, and gcuda_kernels.cu is where its kernels will stand.

BUILD
    cc -O2 my.c -lm -lpthread               one of the files holds the implementation:

    #define GCUDA_IMPLEMENTATION            // in exactly one C or C++ file, before any other include
    #include "gcuda.h"

QUICK START
    #define GCUDA_IMPLEMENTATION
    #include "gcuda.h"
    #include <stdio.h>

    int main(void) {
        struct gcuda_init_params params = { 0, NULL, false };   // arena grows, tensors have data in it
        struct gcuda_context * ctx = gcuda_init(params);
        struct gcuda_tensor * a = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 4, 2);   // ne[0] = 4 is the row length
        struct gcuda_tensor * y = gcuda_rms_norm(ctx, gcuda_scale(ctx, a, 2.0f), 1e-6f);
        struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
        gcuda_status st = gcuda_build_forward_expand(graph, y);  // reports what any line above got wrong
        if (st == GCUDA_STATUS_SUCCESS) {
            gcuda_set_f32(a, 3.0f);
            st = gcuda_graph_compute_with_ctx(ctx, graph, 2);    // two threads
        }
        printf("%s: %g\n", st ? gcuda_last_error() : "ok", st ? 0.0 : gcuda_get_f32_1d(y, 0));
        gcuda_free(ctx);
        return st;
    }

  With backends, which is what programs that should also run on a GPU do: make the context with no_alloc = true, place
  the weights with gcuda_backend_alloc_ctx_tensors and the intermediate results with a gcuda_gallocr, move data with
  gcuda_backend_tensor_set and _get, compute with gcuda_backend_graph_compute. examples/digits.c trains a model that way.

SHAPES
    ne[0..3] counts elements, ne[0] innermost; nb[0..3] are strides in bytes. [a, b] in comments means ne[0] = a,
    ne[1] = b, the rest 1. gcuda_mul_mat(weights [K, M], x [K, N]) gives [M, N]: both have the summed dimension first.
    Quantized types are blocks of 32 or 256 elements along ne[0]; nb[0] is the size of a block.

MEMORY
    Who makes it frees it. A context (gcuda_init) is an arena of tensor and graph descriptions, and of data unless
    no_alloc; gcuda_free ends all of them. Backend buffers, allocators, backends, thread pools, graph copies and plans
    each have their _free, which takes NULL. A tensor points at memory, it never owns any: buffers must outlive their
    use, not the tensors. Views share the memory of their owner, chains are flattened, so view_src is never a view.
    All host memory comes from GCUDA_MALLOC, or from gcuda_set_allocator. Every allocation may fail: that is a status.
    Once a graph is allocated and computed, computing it again allocates nothing.

ERRORS
    A function that can fail returns a gcuda_status, or a pointer that is then NULL, and leaves a message with names and
    numbers in gcuda_last_error() (one per thread). Nothing aborts, exits or prints.
    A context keeps the first error of its constructors. Constructors given NULL return NULL, so a model can be written
    without a check on each line: gcuda_build_forward_expand returns the status and the message. After
    gcuda_context_clear_error the context can be used again; a refused node leaves nothing behind.
    supports_op and compute ask the same rule: a graph with a node that the backend cannot run is refused by name before
    anything runs. Indices out of range in data (get_rows, set_rows, mul_mat_id ...) read zeros and write nothing; the
    graph is computed to its end and GCUDA_STATUS_INVALID_DATA names the node.

THREADS
    Different contexts, graphs, backends and buffers may be used by different threads at the same time; one object by
    one thread at a time. The registry, the log and the allocator setting have a lock. A CPU backend computes with
    n_threads threads of a pool, the caller among them; the others sleep between graphs. Results are bit for bit the same
    for any number of threads. An abort callback stops a graph within about 10 ms.

EMBEDDING IN AN ENGINE
    Allocation:    gcuda_set_allocator(&callbacks) before the first object; or GCUDA_MALLOC and GCUDA_FREE.
    Logging:       gcuda_log_set; silent otherwise.
    Own threads:   gcuda_backend_cpu_set_threadpool with a pool of chosen processors and priority, or one thread.
    Frame time:    reserve once with gcuda_gallocr_reserve, rebuild the graph each frame in a context that is
                   gcuda_reset, place it with gcuda_gallocr_alloc_graph: no allocation while the structure is the same.
                   gcuda_backend_cpu_set_abort_callback ends a graph that takes too long.
    Several units: any number may include the declarations. Two libraries that each embed a copy: GCUDA_STATIC for
                   private copies, or GCUDA_PREFIX to rename every external symbol of one.
    Own memory:    gcuda_init with a mem_buffer; gcuda_backend_cpu_buffer_from_ptr for weights in a mapped file.
    C++:           the implementation compiles as C++11 to C++20 too. MSVC: written for, untested. Win32 with mingw-w64:
                   tested under wine.

ADDING AN OPERATION
    1. its row in GCUDA_OPS, and its argument struct's name in GCUDA_ARGS if it has its own
    2. its >>op:NAME block in >>ops: argument struct, comment, constructors
    3. its >>op:NAME block in >>impl-ops: constructors, gcudai_NAME_check, gcudai_NAME_args, gcudai_NAME_cpu, and
       gcudai_NAME_work or gcudai_NAME_can where the shared ones do not fit
    4. a derivative, if it has one: a function and a row of GCUDAI_GRADS in >>impl-autodiff
    5. a reference and a row in tests/test-ops.c
    The compiler names a missing function, `make lint` a missing block or test, `make generate` renews GCUDA_PREFIX's
    list and the README's table.

LIMITS
    Four dimensions, ten sources per node, 64 bytes of parameters, names of 63 bytes. IQ1_*, IQ2_*, IQ3_* can be read and
    computed with, not quantized to. Q8_1 and Q8_K are formats of activations: they convert, but are no weights of
    mul_mat. SIMD kernels: AVX2, AVX-512, NEON; mingw-gcc builds use the scalar ones.

CONTENTS  (search for the tag; `make map` prints the lines)
    >>config         every macro a user may set; version
    >>status         status codes, last error, log callback, allocator callbacks
    >>types          element types, block layouts, conversions
    >>tensor         struct gcuda_tensor, contexts, views, layout predicates
    >>ops            GCUDA_OPS, the registry of operations; then one >>op:NAME block each
    >>graph          graphs: building, lookup, printing
    >>autodiff       backward graphs, gradients
    >>alloc          tensor allocator, graph allocator
    >>backend        buffers, devices, backends, registry: the vtables and their front functions
    >>cpu            CPU backend, thread pool
    >>quantize       host quantizers for weights
    >>impl-platform  threads, atomics, clock, memory, SIMD guards: the only section with _WIN32 in it
    >>impl-status    errors, log, allocation
    >>impl-math      overflow-checked sizes; half and bfloat16 conversion
    >>impl-quants    block formats: dequantize, quantize, codebooks
    >>impl-types     type table
    >>impl-tensor    contexts, tensors, views
    >>impl-simd      vectorised CPU kernels
    >>impl-ops       shared checks; then one >>op:NAME block each: constructor, check, args, CPU
    >>impl-registry  the tables made from GCUDA_OPS; nothing else lists operations
    >>impl-graph     graphs
    >>impl-autodiff  derivatives
    >>impl-alloc     allocators
    >>impl-backend   buffers, devices, backends, registry
    >>impl-cpu       CPU backend, thread pool
*/

#if defined(GCUDA_IMPLEMENTATION) && !defined(GCUDAI_FEATURES_SET)
#define GCUDAI_FEATURES_SET
// The implementation uses POSIX clocks and thread affinity. Strict modes (-std=c99) hide them unless asked before the
// first system header: so the include that carries GCUDA_IMPLEMENTATION comes first in its file.
#if !defined(_GNU_SOURCE) && !defined(_WIN32)
#define _GNU_SOURCE 1
#endif
#if defined(_WIN32)
#if !defined(_WIN32_WINNT)
#define _WIN32_WINNT 0x0601 // Windows 7: slim locks and condition variables
#endif
#if !defined(_CRT_SECURE_NO_WARNINGS)
#define _CRT_SECURE_NO_WARNINGS 1 // getenv, fopen
#endif
#if defined(__MINGW32__) && !defined(__USE_MINGW_ANSI_STDIO)
#define __USE_MINGW_ANSI_STDIO 1 // %zu and %lld as C99 means them
#endif
#endif
#endif

#ifndef GCUDA_H
#define GCUDA_H

// =====================================================================================================
// >>config   every macro a user may set, each with its default and why; version
// =====================================================================================================
//
//   GCUDA_IMPLEMENTATION  define it in one file to get the function bodies there
//   GCUDA_API             what stands before every public function; default extern (C linkage)
//   GCUDA_STATIC          all functions static: several private copies in one program
//   GCUDA_PREFIX          renames every external symbol: with GCUDA_PREFIX=my_, gcuda_init links as my_gcuda_init
//   GCUDA_ASSERT(cond)    internal consistency checks in debug builds; default: nothing. Never needed for
//                         correctness: everything a caller can get wrong is a status
//   GCUDA_MALLOC, GCUDA_FREE  (size) and (pointer): what the default allocator calls; default malloc and free
//   GCUDA_NO_THREADS      no threads, locks or atomics; everything runs on the calling thread
//   GCUDA_NO_CUDA         leave the CUDA backend out (it is left out anyway until gcuda_kernels.cu is linked)
//   GCUDA_NO_CUBLAS       leave cuBLAS out
//   GCUDA_NO_SIMD         scalar CPU kernels only

#define GCUDA_VERSION_MAJOR 0
#define GCUDA_VERSION_MINOR 1
#define GCUDA_VERSION_PATCH 0
#define GCUDA_VERSION (GCUDA_VERSION_MAJOR * 10000 + GCUDA_VERSION_MINOR * 100 + GCUDA_VERSION_PATCH)

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
#define GCUDAI_UNUSED __attribute__((unused))
#else
#define GCUDAI_UNUSED
#endif

#ifndef GCUDA_API
#ifdef GCUDA_STATIC
#define GCUDA_API GCUDAI_UNUSED static
#else
#define GCUDA_API extern
#endif
#endif

// gcudai-prefix-begin (made by tests/tools/gen_prefix.py; make lint checks it)
#ifdef GCUDA_PREFIX
#define GCUDAI_RENAME2(prefix, name) prefix##name
#define GCUDAI_RENAME(prefix, name) GCUDAI_RENAME2(prefix, name)
#define gcuda_acc GCUDAI_RENAME(GCUDA_PREFIX, gcuda_acc)
#define gcuda_acc_inplace GCUDAI_RENAME(GCUDA_PREFIX, gcuda_acc_inplace)
#define gcuda_arange GCUDAI_RENAME(GCUDA_PREFIX, gcuda_arange)
#define gcuda_are_same_shape GCUDAI_RENAME(GCUDA_PREFIX, gcuda_are_same_shape)
#define gcuda_are_same_stride GCUDAI_RENAME(GCUDA_PREFIX, gcuda_are_same_stride)
#define gcuda_backend_alloc_buffer GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_alloc_buffer)
#define gcuda_backend_alloc_ctx_tensors GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_alloc_ctx_tensors)
#define gcuda_backend_alloc_ctx_tensors_from_buft GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_alloc_ctx_tensors_from_buft)
#define gcuda_backend_buffer_clear GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buffer_clear)
#define gcuda_backend_buffer_free GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buffer_free)
#define gcuda_backend_buffer_get_alignment GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buffer_get_alignment)
#define gcuda_backend_buffer_get_alloc_size GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buffer_get_alloc_size)
#define gcuda_backend_buffer_get_base GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buffer_get_base)
#define gcuda_backend_buffer_get_max_size GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buffer_get_max_size)
#define gcuda_backend_buffer_get_size GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buffer_get_size)
#define gcuda_backend_buffer_get_type GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buffer_get_type)
#define gcuda_backend_buffer_get_usage GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buffer_get_usage)
#define gcuda_backend_buffer_init GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buffer_init)
#define gcuda_backend_buffer_init_tensor GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buffer_init_tensor)
#define gcuda_backend_buffer_is_host GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buffer_is_host)
#define gcuda_backend_buffer_is_multi_buffer GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buffer_is_multi_buffer)
#define gcuda_backend_buffer_name GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buffer_name)
#define gcuda_backend_buffer_reset GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buffer_reset)
#define gcuda_backend_buffer_set_usage GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buffer_set_usage)
#define gcuda_backend_buft_alloc_buffer GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buft_alloc_buffer)
#define gcuda_backend_buft_get_alignment GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buft_get_alignment)
#define gcuda_backend_buft_get_alloc_size GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buft_get_alloc_size)
#define gcuda_backend_buft_get_device GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buft_get_device)
#define gcuda_backend_buft_get_max_size GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buft_get_max_size)
#define gcuda_backend_buft_is_host GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buft_is_host)
#define gcuda_backend_buft_name GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_buft_name)
#define gcuda_backend_compare_graph_backend GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_compare_graph_backend)
#define gcuda_backend_cpu_buffer_from_ptr GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_cpu_buffer_from_ptr)
#define gcuda_backend_cpu_buffer_type GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_cpu_buffer_type)
#define gcuda_backend_cpu_init GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_cpu_init)
#define gcuda_backend_cpu_reg GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_cpu_reg)
#define gcuda_backend_cpu_set_abort_callback GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_cpu_set_abort_callback)
#define gcuda_backend_cpu_set_check_finite GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_cpu_set_check_finite)
#define gcuda_backend_cpu_set_n_threads GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_cpu_set_n_threads)
#define gcuda_backend_cpu_set_threadpool GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_cpu_set_threadpool)
#define gcuda_backend_dev_backend_reg GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_dev_backend_reg)
#define gcuda_backend_dev_buffer_from_host_ptr GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_dev_buffer_from_host_ptr)
#define gcuda_backend_dev_buffer_type GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_dev_buffer_type)
#define gcuda_backend_dev_by_name GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_dev_by_name)
#define gcuda_backend_dev_by_type GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_dev_by_type)
#define gcuda_backend_dev_count GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_dev_count)
#define gcuda_backend_dev_description GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_dev_description)
#define gcuda_backend_dev_get GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_dev_get)
#define gcuda_backend_dev_get_props GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_dev_get_props)
#define gcuda_backend_dev_host_buffer_type GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_dev_host_buffer_type)
#define gcuda_backend_dev_init GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_dev_init)
#define gcuda_backend_dev_memory GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_dev_memory)
#define gcuda_backend_dev_name GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_dev_name)
#define gcuda_backend_dev_offload_op GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_dev_offload_op)
#define gcuda_backend_dev_supports_buft GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_dev_supports_buft)
#define gcuda_backend_dev_supports_op GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_dev_supports_op)
#define gcuda_backend_dev_type GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_dev_type)
#define gcuda_backend_event_free GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_event_free)
#define gcuda_backend_event_new GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_event_new)
#define gcuda_backend_event_query GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_event_query)
#define gcuda_backend_event_record GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_event_record)
#define gcuda_backend_event_synchronize GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_event_synchronize)
#define gcuda_backend_event_wait GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_event_wait)
#define gcuda_backend_free GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_free)
#define gcuda_backend_get_alignment GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_get_alignment)
#define gcuda_backend_get_default_buffer_type GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_get_default_buffer_type)
#define gcuda_backend_get_device GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_get_device)
#define gcuda_backend_get_max_size GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_get_max_size)
#define gcuda_backend_graph_compute GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_graph_compute)
#define gcuda_backend_graph_compute_async GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_graph_compute_async)
#define gcuda_backend_graph_copy GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_graph_copy)
#define gcuda_backend_graph_copy_free GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_graph_copy_free)
#define gcuda_backend_graph_plan_compute GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_graph_plan_compute)
#define gcuda_backend_graph_plan_create GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_graph_plan_create)
#define gcuda_backend_graph_plan_free GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_graph_plan_free)
#define gcuda_backend_guid GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_guid)
#define gcuda_backend_init_best GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_init_best)
#define gcuda_backend_init_by_name GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_init_by_name)
#define gcuda_backend_init_by_type GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_init_by_type)
#define gcuda_backend_is_cpu GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_is_cpu)
#define gcuda_backend_multi_buffer_alloc_buffer GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_multi_buffer_alloc_buffer)
#define gcuda_backend_name GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_name)
#define gcuda_backend_offload_op GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_offload_op)
#define gcuda_backend_reg_by_name GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_reg_by_name)
#define gcuda_backend_reg_count GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_reg_count)
#define gcuda_backend_reg_dev_count GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_reg_dev_count)
#define gcuda_backend_reg_dev_get GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_reg_dev_get)
#define gcuda_backend_reg_get GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_reg_get)
#define gcuda_backend_reg_get_proc_address GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_reg_get_proc_address)
#define gcuda_backend_reg_name GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_reg_name)
#define gcuda_backend_register GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_register)
#define gcuda_backend_supports_buft GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_supports_buft)
#define gcuda_backend_supports_op GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_supports_op)
#define gcuda_backend_synchronize GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_synchronize)
#define gcuda_backend_tensor_alloc GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_tensor_alloc)
#define gcuda_backend_tensor_copy GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_tensor_copy)
#define gcuda_backend_tensor_copy_async GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_tensor_copy_async)
#define gcuda_backend_tensor_get GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_tensor_get)
#define gcuda_backend_tensor_get_async GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_tensor_get_async)
#define gcuda_backend_tensor_memset GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_tensor_memset)
#define gcuda_backend_tensor_set GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_tensor_set)
#define gcuda_backend_tensor_set_async GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_tensor_set_async)
#define gcuda_backend_view_init GCUDAI_RENAME(GCUDA_PREFIX, gcuda_backend_view_init)
#define gcuda_bf16_to_fp32 GCUDAI_RENAME(GCUDA_PREFIX, gcuda_bf16_to_fp32)
#define gcuda_bf16_to_fp32_row GCUDAI_RENAME(GCUDA_PREFIX, gcuda_bf16_to_fp32_row)
#define gcuda_blck_size GCUDAI_RENAME(GCUDA_PREFIX, gcuda_blck_size)
#define gcuda_build_forward_expand GCUDAI_RENAME(GCUDA_PREFIX, gcuda_build_forward_expand)
#define gcuda_can_repeat GCUDAI_RENAME(GCUDA_PREFIX, gcuda_can_repeat)
#define gcuda_can_repeat_rows GCUDAI_RENAME(GCUDA_PREFIX, gcuda_can_repeat_rows)
#define gcuda_cast GCUDAI_RENAME(GCUDA_PREFIX, gcuda_cast)
#define gcuda_check_row_data GCUDAI_RENAME(GCUDA_PREFIX, gcuda_check_row_data)
#define gcuda_clear_last_error GCUDAI_RENAME(GCUDA_PREFIX, gcuda_clear_last_error)
#define gcuda_concat GCUDAI_RENAME(GCUDA_PREFIX, gcuda_concat)
#define gcuda_cont GCUDAI_RENAME(GCUDA_PREFIX, gcuda_cont)
#define gcuda_cont_1d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_cont_1d)
#define gcuda_cont_2d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_cont_2d)
#define gcuda_cont_3d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_cont_3d)
#define gcuda_cont_4d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_cont_4d)
#define gcuda_context_clear_error GCUDAI_RENAME(GCUDA_PREFIX, gcuda_context_clear_error)
#define gcuda_context_error GCUDAI_RENAME(GCUDA_PREFIX, gcuda_context_error)
#define gcuda_context_status GCUDAI_RENAME(GCUDA_PREFIX, gcuda_context_status)
#define gcuda_conv_1d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_conv_1d)
#define gcuda_conv_1d_dw GCUDAI_RENAME(GCUDA_PREFIX, gcuda_conv_1d_dw)
#define gcuda_conv_1d_dw_ph GCUDAI_RENAME(GCUDA_PREFIX, gcuda_conv_1d_dw_ph)
#define gcuda_conv_1d_ph GCUDAI_RENAME(GCUDA_PREFIX, gcuda_conv_1d_ph)
#define gcuda_conv_2d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_conv_2d)
#define gcuda_conv_2d_direct GCUDAI_RENAME(GCUDA_PREFIX, gcuda_conv_2d_direct)
#define gcuda_conv_2d_dw GCUDAI_RENAME(GCUDA_PREFIX, gcuda_conv_2d_dw)
#define gcuda_conv_2d_dw_direct GCUDAI_RENAME(GCUDA_PREFIX, gcuda_conv_2d_dw_direct)
#define gcuda_conv_2d_s1_ph GCUDAI_RENAME(GCUDA_PREFIX, gcuda_conv_2d_s1_ph)
#define gcuda_conv_2d_sk_p0 GCUDAI_RENAME(GCUDA_PREFIX, gcuda_conv_2d_sk_p0)
#define gcuda_conv_3d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_conv_3d)
#define gcuda_conv_transpose_1d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_conv_transpose_1d)
#define gcuda_conv_transpose_2d_p0 GCUDAI_RENAME(GCUDA_PREFIX, gcuda_conv_transpose_2d_p0)
#define gcuda_cpu_get_isa GCUDAI_RENAME(GCUDA_PREFIX, gcuda_cpu_get_isa)
#define gcuda_cpu_set_isa GCUDAI_RENAME(GCUDA_PREFIX, gcuda_cpu_set_isa)
#define gcuda_cpy GCUDAI_RENAME(GCUDA_PREFIX, gcuda_cpy)
#define gcuda_custom_4d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_custom_4d)
#define gcuda_custom_inplace GCUDAI_RENAME(GCUDA_PREFIX, gcuda_custom_inplace)
#define gcuda_diag GCUDAI_RENAME(GCUDA_PREFIX, gcuda_diag)
#define gcuda_diag_mask_inf GCUDAI_RENAME(GCUDA_PREFIX, gcuda_diag_mask_inf)
#define gcuda_diag_mask_inf_inplace GCUDAI_RENAME(GCUDA_PREFIX, gcuda_diag_mask_inf_inplace)
#define gcuda_diag_mask_zero GCUDAI_RENAME(GCUDA_PREFIX, gcuda_diag_mask_zero)
#define gcuda_diag_mask_zero_inplace GCUDAI_RENAME(GCUDA_PREFIX, gcuda_diag_mask_zero_inplace)
#define gcuda_dup GCUDAI_RENAME(GCUDA_PREFIX, gcuda_dup)
#define gcuda_dup_inplace GCUDAI_RENAME(GCUDA_PREFIX, gcuda_dup_inplace)
#define gcuda_dup_tensor GCUDAI_RENAME(GCUDA_PREFIX, gcuda_dup_tensor)
#define gcuda_element_size GCUDAI_RENAME(GCUDA_PREFIX, gcuda_element_size)
#define gcuda_fill GCUDAI_RENAME(GCUDA_PREFIX, gcuda_fill)
#define gcuda_fill_inplace GCUDAI_RENAME(GCUDA_PREFIX, gcuda_fill_inplace)
#define gcuda_flash_attn_ext GCUDAI_RENAME(GCUDA_PREFIX, gcuda_flash_attn_ext)
#define gcuda_flash_attn_ext_add_sinks GCUDAI_RENAME(GCUDA_PREFIX, gcuda_flash_attn_ext_add_sinks)
#define gcuda_flash_attn_ext_get_prec GCUDAI_RENAME(GCUDA_PREFIX, gcuda_flash_attn_ext_get_prec)
#define gcuda_flash_attn_ext_set_prec GCUDAI_RENAME(GCUDA_PREFIX, gcuda_flash_attn_ext_set_prec)
#define gcuda_format_name GCUDAI_RENAME(GCUDA_PREFIX, gcuda_format_name)
#define gcuda_fp16_to_fp32 GCUDAI_RENAME(GCUDA_PREFIX, gcuda_fp16_to_fp32)
#define gcuda_fp16_to_fp32_row GCUDAI_RENAME(GCUDA_PREFIX, gcuda_fp16_to_fp32_row)
#define gcuda_fp32_to_bf16 GCUDAI_RENAME(GCUDA_PREFIX, gcuda_fp32_to_bf16)
#define gcuda_fp32_to_bf16_row GCUDAI_RENAME(GCUDA_PREFIX, gcuda_fp32_to_bf16_row)
#define gcuda_fp32_to_fp16 GCUDAI_RENAME(GCUDA_PREFIX, gcuda_fp32_to_fp16)
#define gcuda_fp32_to_fp16_row GCUDAI_RENAME(GCUDA_PREFIX, gcuda_fp32_to_fp16_row)
#define gcuda_free GCUDAI_RENAME(GCUDA_PREFIX, gcuda_free)
#define gcuda_gallocr_alloc_graph GCUDAI_RENAME(GCUDA_PREFIX, gcuda_gallocr_alloc_graph)
#define gcuda_gallocr_free GCUDAI_RENAME(GCUDA_PREFIX, gcuda_gallocr_free)
#define gcuda_gallocr_get_buffer_size GCUDAI_RENAME(GCUDA_PREFIX, gcuda_gallocr_get_buffer_size)
#define gcuda_gallocr_new GCUDAI_RENAME(GCUDA_PREFIX, gcuda_gallocr_new)
#define gcuda_gallocr_new_n GCUDAI_RENAME(GCUDA_PREFIX, gcuda_gallocr_new_n)
#define gcuda_gallocr_reserve GCUDAI_RENAME(GCUDA_PREFIX, gcuda_gallocr_reserve)
#define gcuda_gallocr_reserve_n GCUDAI_RENAME(GCUDA_PREFIX, gcuda_gallocr_reserve_n)
#define gcuda_gallocr_reserve_n_size GCUDAI_RENAME(GCUDA_PREFIX, gcuda_gallocr_reserve_n_size)
#define gcuda_gated_linear_attn GCUDAI_RENAME(GCUDA_PREFIX, gcuda_gated_linear_attn)
#define gcuda_get_data GCUDAI_RENAME(GCUDA_PREFIX, gcuda_get_data)
#define gcuda_get_data_f32 GCUDAI_RENAME(GCUDA_PREFIX, gcuda_get_data_f32)
#define gcuda_get_f32_1d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_get_f32_1d)
#define gcuda_get_f32_nd GCUDAI_RENAME(GCUDA_PREFIX, gcuda_get_f32_nd)
#define gcuda_get_first_tensor GCUDAI_RENAME(GCUDA_PREFIX, gcuda_get_first_tensor)
#define gcuda_get_max_tensor_size GCUDAI_RENAME(GCUDA_PREFIX, gcuda_get_max_tensor_size)
#define gcuda_get_mem_buffer GCUDAI_RENAME(GCUDA_PREFIX, gcuda_get_mem_buffer)
#define gcuda_get_mem_size GCUDAI_RENAME(GCUDA_PREFIX, gcuda_get_mem_size)
#define gcuda_get_name GCUDAI_RENAME(GCUDA_PREFIX, gcuda_get_name)
#define gcuda_get_next_tensor GCUDAI_RENAME(GCUDA_PREFIX, gcuda_get_next_tensor)
#define gcuda_get_no_alloc GCUDAI_RENAME(GCUDA_PREFIX, gcuda_get_no_alloc)
#define gcuda_get_rows GCUDAI_RENAME(GCUDA_PREFIX, gcuda_get_rows)
#define gcuda_get_rows_back GCUDAI_RENAME(GCUDA_PREFIX, gcuda_get_rows_back)
#define gcuda_get_tensor GCUDAI_RENAME(GCUDA_PREFIX, gcuda_get_tensor)
#define gcuda_get_type_traits GCUDAI_RENAME(GCUDA_PREFIX, gcuda_get_type_traits)
#define gcuda_graph_add_node GCUDAI_RENAME(GCUDA_PREFIX, gcuda_graph_add_node)
#define gcuda_graph_clear GCUDAI_RENAME(GCUDA_PREFIX, gcuda_graph_clear)
#define gcuda_graph_compute GCUDAI_RENAME(GCUDA_PREFIX, gcuda_graph_compute)
#define gcuda_graph_compute_with_ctx GCUDAI_RENAME(GCUDA_PREFIX, gcuda_graph_compute_with_ctx)
#define gcuda_graph_cpy GCUDAI_RENAME(GCUDA_PREFIX, gcuda_graph_cpy)
#define gcuda_graph_dump_dot GCUDAI_RENAME(GCUDA_PREFIX, gcuda_graph_dump_dot)
#define gcuda_graph_dup GCUDAI_RENAME(GCUDA_PREFIX, gcuda_graph_dup)
#define gcuda_graph_get_tensor GCUDAI_RENAME(GCUDA_PREFIX, gcuda_graph_get_tensor)
#define gcuda_graph_n_nodes GCUDAI_RENAME(GCUDA_PREFIX, gcuda_graph_n_nodes)
#define gcuda_graph_node GCUDAI_RENAME(GCUDA_PREFIX, gcuda_graph_node)
#define gcuda_graph_nodes GCUDAI_RENAME(GCUDA_PREFIX, gcuda_graph_nodes)
#define gcuda_graph_overhead GCUDAI_RENAME(GCUDA_PREFIX, gcuda_graph_overhead)
#define gcuda_graph_overhead_custom GCUDAI_RENAME(GCUDA_PREFIX, gcuda_graph_overhead_custom)
#define gcuda_graph_plan GCUDAI_RENAME(GCUDA_PREFIX, gcuda_graph_plan)
#define gcuda_graph_print GCUDAI_RENAME(GCUDA_PREFIX, gcuda_graph_print)
#define gcuda_graph_size GCUDAI_RENAME(GCUDA_PREFIX, gcuda_graph_size)
#define gcuda_graph_to_dot GCUDAI_RENAME(GCUDA_PREFIX, gcuda_graph_to_dot)
#define gcuda_graph_to_text GCUDAI_RENAME(GCUDA_PREFIX, gcuda_graph_to_text)
#define gcuda_graph_use_count GCUDAI_RENAME(GCUDA_PREFIX, gcuda_graph_use_count)
#define gcuda_graph_view GCUDAI_RENAME(GCUDA_PREFIX, gcuda_graph_view)
#define gcuda_im2col GCUDAI_RENAME(GCUDA_PREFIX, gcuda_im2col)
#define gcuda_im2col_3d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_im2col_3d)
#define gcuda_im2col_back GCUDAI_RENAME(GCUDA_PREFIX, gcuda_im2col_back)
#define gcuda_init GCUDAI_RENAME(GCUDA_PREFIX, gcuda_init)
#define gcuda_interpolate GCUDAI_RENAME(GCUDA_PREFIX, gcuda_interpolate)
#define gcuda_is_3d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_is_3d)
#define gcuda_is_contiguous GCUDAI_RENAME(GCUDA_PREFIX, gcuda_is_contiguous)
#define gcuda_is_contiguous_0 GCUDAI_RENAME(GCUDA_PREFIX, gcuda_is_contiguous_0)
#define gcuda_is_contiguous_1 GCUDAI_RENAME(GCUDA_PREFIX, gcuda_is_contiguous_1)
#define gcuda_is_contiguous_2 GCUDAI_RENAME(GCUDA_PREFIX, gcuda_is_contiguous_2)
#define gcuda_is_contiguous_channels GCUDAI_RENAME(GCUDA_PREFIX, gcuda_is_contiguous_channels)
#define gcuda_is_contiguous_rows GCUDAI_RENAME(GCUDA_PREFIX, gcuda_is_contiguous_rows)
#define gcuda_is_contiguously_allocated GCUDAI_RENAME(GCUDA_PREFIX, gcuda_is_contiguously_allocated)
#define gcuda_is_empty GCUDAI_RENAME(GCUDA_PREFIX, gcuda_is_empty)
#define gcuda_is_matrix GCUDAI_RENAME(GCUDA_PREFIX, gcuda_is_matrix)
#define gcuda_is_padded_1d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_is_padded_1d)
#define gcuda_is_permuted GCUDAI_RENAME(GCUDA_PREFIX, gcuda_is_permuted)
#define gcuda_is_quantized GCUDAI_RENAME(GCUDA_PREFIX, gcuda_is_quantized)
#define gcuda_is_scalar GCUDAI_RENAME(GCUDA_PREFIX, gcuda_is_scalar)
#define gcuda_is_transposed GCUDAI_RENAME(GCUDA_PREFIX, gcuda_is_transposed)
#define gcuda_is_vector GCUDAI_RENAME(GCUDA_PREFIX, gcuda_is_vector)
#define gcuda_is_view GCUDAI_RENAME(GCUDA_PREFIX, gcuda_is_view)
#define gcuda_last_error GCUDAI_RENAME(GCUDA_PREFIX, gcuda_last_error)
#define gcuda_log_set GCUDAI_RENAME(GCUDA_PREFIX, gcuda_log_set)
#define gcuda_map_custom1 GCUDAI_RENAME(GCUDA_PREFIX, gcuda_map_custom1)
#define gcuda_map_custom1_inplace GCUDAI_RENAME(GCUDA_PREFIX, gcuda_map_custom1_inplace)
#define gcuda_map_custom2 GCUDAI_RENAME(GCUDA_PREFIX, gcuda_map_custom2)
#define gcuda_map_custom2_inplace GCUDAI_RENAME(GCUDA_PREFIX, gcuda_map_custom2_inplace)
#define gcuda_map_custom3 GCUDAI_RENAME(GCUDA_PREFIX, gcuda_map_custom3)
#define gcuda_map_custom3_inplace GCUDAI_RENAME(GCUDA_PREFIX, gcuda_map_custom3_inplace)
#define gcuda_mul_mat GCUDAI_RENAME(GCUDA_PREFIX, gcuda_mul_mat)
#define gcuda_mul_mat_id GCUDAI_RENAME(GCUDA_PREFIX, gcuda_mul_mat_id)
#define gcuda_mul_mat_partner GCUDAI_RENAME(GCUDA_PREFIX, gcuda_mul_mat_partner)
#define gcuda_mul_mat_set_prec GCUDAI_RENAME(GCUDA_PREFIX, gcuda_mul_mat_set_prec)
#define gcuda_n_dims GCUDAI_RENAME(GCUDA_PREFIX, gcuda_n_dims)
#define gcuda_nbytes GCUDAI_RENAME(GCUDA_PREFIX, gcuda_nbytes)
#define gcuda_nbytes_pad GCUDAI_RENAME(GCUDA_PREFIX, gcuda_nbytes_pad)
#define gcuda_nelements GCUDAI_RENAME(GCUDA_PREFIX, gcuda_nelements)
#define gcuda_new_buffer GCUDAI_RENAME(GCUDA_PREFIX, gcuda_new_buffer)
#define gcuda_new_f32 GCUDAI_RENAME(GCUDA_PREFIX, gcuda_new_f32)
#define gcuda_new_graph GCUDAI_RENAME(GCUDA_PREFIX, gcuda_new_graph)
#define gcuda_new_graph_custom GCUDAI_RENAME(GCUDA_PREFIX, gcuda_new_graph_custom)
#define gcuda_new_i32 GCUDAI_RENAME(GCUDA_PREFIX, gcuda_new_i32)
#define gcuda_new_tensor GCUDAI_RENAME(GCUDA_PREFIX, gcuda_new_tensor)
#define gcuda_new_tensor_1d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_new_tensor_1d)
#define gcuda_new_tensor_2d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_new_tensor_2d)
#define gcuda_new_tensor_3d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_new_tensor_3d)
#define gcuda_new_tensor_4d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_new_tensor_4d)
#define gcuda_nrows GCUDAI_RENAME(GCUDA_PREFIX, gcuda_nrows)
#define gcuda_op_desc GCUDAI_RENAME(GCUDA_PREFIX, gcuda_op_desc)
#define gcuda_op_name GCUDAI_RENAME(GCUDA_PREFIX, gcuda_op_name)
#define gcuda_out_prod GCUDAI_RENAME(GCUDA_PREFIX, gcuda_out_prod)
#define gcuda_pad GCUDAI_RENAME(GCUDA_PREFIX, gcuda_pad)
#define gcuda_pad_circular GCUDAI_RENAME(GCUDA_PREFIX, gcuda_pad_circular)
#define gcuda_pad_ext GCUDAI_RENAME(GCUDA_PREFIX, gcuda_pad_ext)
#define gcuda_pad_ext_circular GCUDAI_RENAME(GCUDA_PREFIX, gcuda_pad_ext_circular)
#define gcuda_pad_reflect_1d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_pad_reflect_1d)
#define gcuda_permute GCUDAI_RENAME(GCUDA_PREFIX, gcuda_permute)
#define gcuda_pool_1d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_pool_1d)
#define gcuda_pool_2d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_pool_2d)
#define gcuda_pool_2d_back GCUDAI_RENAME(GCUDA_PREFIX, gcuda_pool_2d_back)
#define gcuda_quantize_chunk GCUDAI_RENAME(GCUDA_PREFIX, gcuda_quantize_chunk)
#define gcuda_quantize_requires_imatrix GCUDAI_RENAME(GCUDA_PREFIX, gcuda_quantize_requires_imatrix)
#define gcuda_quantize_rows GCUDAI_RENAME(GCUDA_PREFIX, gcuda_quantize_rows)
#define gcuda_repeat GCUDAI_RENAME(GCUDA_PREFIX, gcuda_repeat)
#define gcuda_repeat_4d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_repeat_4d)
#define gcuda_repeat_back GCUDAI_RENAME(GCUDA_PREFIX, gcuda_repeat_back)
#define gcuda_reset GCUDAI_RENAME(GCUDA_PREFIX, gcuda_reset)
#define gcuda_reshape GCUDAI_RENAME(GCUDA_PREFIX, gcuda_reshape)
#define gcuda_reshape_1d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_reshape_1d)
#define gcuda_reshape_2d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_reshape_2d)
#define gcuda_reshape_3d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_reshape_3d)
#define gcuda_reshape_4d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_reshape_4d)
#define gcuda_rms_norm GCUDAI_RENAME(GCUDA_PREFIX, gcuda_rms_norm)
#define gcuda_rms_norm_inplace GCUDAI_RENAME(GCUDA_PREFIX, gcuda_rms_norm_inplace)
#define gcuda_roll GCUDAI_RENAME(GCUDA_PREFIX, gcuda_roll)
#define gcuda_row_size GCUDAI_RENAME(GCUDA_PREFIX, gcuda_row_size)
#define gcuda_rwkv_wkv6 GCUDAI_RENAME(GCUDA_PREFIX, gcuda_rwkv_wkv6)
#define gcuda_rwkv_wkv7 GCUDAI_RENAME(GCUDA_PREFIX, gcuda_rwkv_wkv7)
#define gcuda_set GCUDAI_RENAME(GCUDA_PREFIX, gcuda_set)
#define gcuda_set_1d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_set_1d)
#define gcuda_set_1d_inplace GCUDAI_RENAME(GCUDA_PREFIX, gcuda_set_1d_inplace)
#define gcuda_set_2d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_set_2d)
#define gcuda_set_2d_inplace GCUDAI_RENAME(GCUDA_PREFIX, gcuda_set_2d_inplace)
#define gcuda_set_allocator GCUDAI_RENAME(GCUDA_PREFIX, gcuda_set_allocator)
#define gcuda_set_f32 GCUDAI_RENAME(GCUDA_PREFIX, gcuda_set_f32)
#define gcuda_set_f32_1d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_set_f32_1d)
#define gcuda_set_f32_nd GCUDAI_RENAME(GCUDA_PREFIX, gcuda_set_f32_nd)
#define gcuda_set_i32 GCUDAI_RENAME(GCUDA_PREFIX, gcuda_set_i32)
#define gcuda_set_inplace GCUDAI_RENAME(GCUDA_PREFIX, gcuda_set_inplace)
#define gcuda_set_input GCUDAI_RENAME(GCUDA_PREFIX, gcuda_set_input)
#define gcuda_set_last_error GCUDAI_RENAME(GCUDA_PREFIX, gcuda_set_last_error)
#define gcuda_set_loss GCUDAI_RENAME(GCUDA_PREFIX, gcuda_set_loss)
#define gcuda_set_name GCUDAI_RENAME(GCUDA_PREFIX, gcuda_set_name)
#define gcuda_set_no_alloc GCUDAI_RENAME(GCUDA_PREFIX, gcuda_set_no_alloc)
#define gcuda_set_output GCUDAI_RENAME(GCUDA_PREFIX, gcuda_set_output)
#define gcuda_set_param GCUDAI_RENAME(GCUDA_PREFIX, gcuda_set_param)
#define gcuda_set_rows GCUDAI_RENAME(GCUDA_PREFIX, gcuda_set_rows)
#define gcuda_set_zero GCUDAI_RENAME(GCUDA_PREFIX, gcuda_set_zero)
#define gcuda_shutdown GCUDAI_RENAME(GCUDA_PREFIX, gcuda_shutdown)
#define gcuda_solve_tri GCUDAI_RENAME(GCUDA_PREFIX, gcuda_solve_tri)
#define gcuda_ssm_conv GCUDAI_RENAME(GCUDA_PREFIX, gcuda_ssm_conv)
#define gcuda_ssm_scan GCUDAI_RENAME(GCUDA_PREFIX, gcuda_ssm_scan)
#define gcuda_status_to_string GCUDAI_RENAME(GCUDA_PREFIX, gcuda_status_to_string)
#define gcuda_tallocr_alloc GCUDAI_RENAME(GCUDA_PREFIX, gcuda_tallocr_alloc)
#define gcuda_tallocr_new GCUDAI_RENAME(GCUDA_PREFIX, gcuda_tallocr_new)
#define gcuda_tensor_overhead GCUDAI_RENAME(GCUDA_PREFIX, gcuda_tensor_overhead)
#define gcuda_threadpool_free GCUDAI_RENAME(GCUDA_PREFIX, gcuda_threadpool_free)
#define gcuda_threadpool_get_n_threads GCUDAI_RENAME(GCUDA_PREFIX, gcuda_threadpool_get_n_threads)
#define gcuda_threadpool_new GCUDAI_RENAME(GCUDA_PREFIX, gcuda_threadpool_new)
#define gcuda_threadpool_params_default GCUDAI_RENAME(GCUDA_PREFIX, gcuda_threadpool_params_default)
#define gcuda_threadpool_params_init GCUDAI_RENAME(GCUDA_PREFIX, gcuda_threadpool_params_init)
#define gcuda_threadpool_params_match GCUDAI_RENAME(GCUDA_PREFIX, gcuda_threadpool_params_match)
#define gcuda_threadpool_pause GCUDAI_RENAME(GCUDA_PREFIX, gcuda_threadpool_pause)
#define gcuda_threadpool_resume GCUDAI_RENAME(GCUDA_PREFIX, gcuda_threadpool_resume)
#define gcuda_time_ms GCUDAI_RENAME(GCUDA_PREFIX, gcuda_time_ms)
#define gcuda_time_us GCUDAI_RENAME(GCUDA_PREFIX, gcuda_time_us)
#define gcuda_timestep_embedding GCUDAI_RENAME(GCUDA_PREFIX, gcuda_timestep_embedding)
#define gcuda_transpose GCUDAI_RENAME(GCUDA_PREFIX, gcuda_transpose)
#define gcuda_tri GCUDAI_RENAME(GCUDA_PREFIX, gcuda_tri)
#define gcuda_type_is_valid GCUDAI_RENAME(GCUDA_PREFIX, gcuda_type_is_valid)
#define gcuda_type_name GCUDAI_RENAME(GCUDA_PREFIX, gcuda_type_name)
#define gcuda_type_size GCUDAI_RENAME(GCUDA_PREFIX, gcuda_type_size)
#define gcuda_unravel_index GCUDAI_RENAME(GCUDA_PREFIX, gcuda_unravel_index)
#define gcuda_upscale GCUDAI_RENAME(GCUDA_PREFIX, gcuda_upscale)
#define gcuda_upscale_ext GCUDAI_RENAME(GCUDA_PREFIX, gcuda_upscale_ext)
#define gcuda_used_mem GCUDAI_RENAME(GCUDA_PREFIX, gcuda_used_mem)
#define gcuda_validate_row_data GCUDAI_RENAME(GCUDA_PREFIX, gcuda_validate_row_data)
#define gcuda_version GCUDAI_RENAME(GCUDA_PREFIX, gcuda_version)
#define gcuda_view_1d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_view_1d)
#define gcuda_view_2d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_view_2d)
#define gcuda_view_3d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_view_3d)
#define gcuda_view_4d GCUDAI_RENAME(GCUDA_PREFIX, gcuda_view_4d)
#define gcuda_view_tensor GCUDAI_RENAME(GCUDA_PREFIX, gcuda_view_tensor)
#endif
// gcudai-prefix-end

#ifdef __cplusplus
extern "C" {
#endif

#define GCUDA_MAX_DIMS 4
#define GCUDA_MAX_SRC 10
#define GCUDA_MAX_OP_PARAMS 64 // bytes
#define GCUDA_MAX_NAME 64      // bytes with the terminator
#define GCUDA_MEM_ALIGN 16     // of objects and data inside a context
#define GCUDA_DEFAULT_GRAPH_SIZE 2048
#define GCUDA_DEFAULT_N_THREADS 4
#define GCUDA_MATRIX_ROW_PADDING 512 // elements that device kernels may read past a quantized tensor

// gcuda_version() is GCUDA_VERSION of the implementation; compare when headers and objects may differ.
GCUDA_API int gcuda_version(void);

// =====================================================================================================
// >>status   status codes, last error, log callback, allocator callbacks
// =====================================================================================================

typedef enum gcuda_status {
    GCUDA_STATUS_SUCCESS = 0,
    GCUDA_STATUS_ABORTED = 1,           // a callback asked to stop; buffers stay usable
    GCUDA_STATUS_FAILED = -1,           // the system or a third party failed
    GCUDA_STATUS_ALLOC_FAILED = -2,     // out of memory (host, device, a fixed context or a budget)
    GCUDA_STATUS_INVALID_ARGUMENT = -3, // the caller's mistake: shapes, types, NULL, ranges
    GCUDA_STATUS_UNSUPPORTED = -4,      // well-formed, but this backend cannot do it
    GCUDA_STATUS_INVALID_DATA = -5,     // bad contents: an index out of range, a damaged block
    GCUDA_STATUS_DEVICE_LOST = -6,      // the device does not come back; freeing still works
    GCUDA_STATUS_IO = -7                // a file could not be read or written
} gcuda_status;

// A static string such as "out of memory"; never NULL.
GCUDA_API const char * gcuda_status_to_string(gcuda_status status);

// The message of the last failure on this thread, never NULL; "" if there was none. Valid until the next failure
// on this thread. Functions that succeed leave it alone.
GCUDA_API const char * gcuda_last_error(void);
GCUDA_API void gcuda_clear_last_error(void);

enum gcuda_log_level {
    GCUDA_LOG_LEVEL_NONE = 0,
    GCUDA_LOG_LEVEL_DEBUG = 1,
    GCUDA_LOG_LEVEL_INFO = 2,
    GCUDA_LOG_LEVEL_WARN = 3,
    GCUDA_LOG_LEVEL_ERROR = 4
};
typedef void (*gcuda_log_callback)(enum gcuda_log_level level, const char * text, void * user_data);

// Silent by default. The callback gets whole lines of at least min_level, from any thread, one at a time; it must
// not call gcuda_log_set. NULL silences again.
GCUDA_API void gcuda_log_set(gcuda_log_callback callback, enum gcuda_log_level min_level, void * user_data);

// Host memory callbacks. alloc returns memory aligned to `alignment` (a power of two) or NULL; free gets the size
// back. Both may be called from several threads. An object is freed by the allocator it came from, whatever was
// set since.
struct gcuda_allocator {
    void * (*alloc)(void * user, size_t size, size_t alignment);
    void (*free)(void * user, void * ptr, size_t size);
    void * user;
};
// For all host allocations of the library from now on; NULL restores GCUDA_MALLOC / GCUDA_FREE.
GCUDA_API void gcuda_set_allocator(const struct gcuda_allocator * allocator);

// Empties the process registry (devices, buffer types, log, allocator). Call it when no object is left; the
// library starts again by itself on the next call.
GCUDA_API void gcuda_shutdown(void);

GCUDA_API int64_t gcuda_time_ms(void);
GCUDA_API int64_t gcuda_time_us(void); // monotonic clock

// =====================================================================================================
// >>types   element types, block layouts, conversions
// =====================================================================================================

typedef uint16_t gcuda_fp16_t; // IEEE binary16
typedef struct {
    uint16_t bits;
} gcuda_bf16_t; // upper half of a binary32

// The one list of element types: id as in GGUF, name, elements and bytes of a block, quantized.
// clang-format off
#define GCUDA_TYPES(X)                                                              \
    /* ID       id  lower     name       block  bytes  quantized */                 \
    X(F32,      0,  f32,      "f32",     1,     4,     0)                           \
    X(F16,      1,  f16,      "f16",     1,     2,     0)                           \
    X(Q4_0,     2,  q4_0,     "q4_0",    32,    18,    1)                           \
    X(Q4_1,     3,  q4_1,     "q4_1",    32,    20,    1)                           \
    X(Q5_0,     6,  q5_0,     "q5_0",    32,    22,    1)                           \
    X(Q5_1,     7,  q5_1,     "q5_1",    32,    24,    1)                           \
    X(Q8_0,     8,  q8_0,     "q8_0",    32,    34,    1)                           \
    X(Q8_1,     9,  q8_1,     "q8_1",    32,    36,    1)                           \
    X(Q2_K,     10, q2_k,     "q2_K",    256,   84,    1)                           \
    X(Q3_K,     11, q3_k,     "q3_K",    256,   110,   1)                           \
    X(Q4_K,     12, q4_k,     "q4_K",    256,   144,   1)                           \
    X(Q5_K,     13, q5_k,     "q5_K",    256,   176,   1)                           \
    X(Q6_K,     14, q6_k,     "q6_K",    256,   210,   1)                           \
    X(Q8_K,     15, q8_k,     "q8_K",    256,   292,   1)                           \
    X(IQ2_XXS,  16, iq2_xxs,  "iq2_xxs", 256,   66,    1)                           \
    X(IQ2_XS,   17, iq2_xs,   "iq2_xs",  256,   74,    1)                           \
    X(IQ3_XXS,  18, iq3_xxs,  "iq3_xxs", 256,   98,    1)                           \
    X(IQ1_S,    19, iq1_s,    "iq1_s",   256,   50,    1)                           \
    X(IQ4_NL,   20, iq4_nl,   "iq4_nl",  32,    18,    1)                           \
    X(IQ3_S,    21, iq3_s,    "iq3_s",   256,   110,   1)                           \
    X(IQ2_S,    22, iq2_s,    "iq2_s",   256,   82,    1)                           \
    X(IQ4_XS,   23, iq4_xs,   "iq4_xs",  256,   136,   1)                           \
    X(I8,       24, i8,       "i8",      1,     1,     0)                           \
    X(I16,      25, i16,      "i16",     1,     2,     0)                           \
    X(I32,      26, i32,      "i32",     1,     4,     0)                           \
    X(I64,      27, i64,      "i64",     1,     8,     0)                           \
    X(F64,      28, f64,      "f64",     1,     8,     0)                           \
    X(IQ1_M,    29, iq1_m,    "iq1_m",   256,   56,    1)                           \
    X(BF16,     30, bf16,     "bf16",    1,     2,     0)                           \
    X(MXFP4,    39, mxfp4,    "mxfp4",   32,    17,    1)
// clang-format on

enum gcuda_type {
#define X(ID, id, lower, name, block, bytes, quantized) GCUDA_TYPE_##ID = id,
    GCUDA_TYPES(X)
#undef X
    GCUDA_TYPE_COUNT = 40
};

// clang-format off
// Blocks of the quantized types, byte for byte as in GGUF files (little endian, no padding). A row of n elements is
// n / blck_size consecutive blocks. d is the block's scale, m or dmin its offset; q* are codes. quants.md 3 to 8.
struct gcuda_block_q4_0 { gcuda_fp16_t d; uint8_t qs[16]; };                   // d * (q - 8)
struct gcuda_block_q4_1 { gcuda_fp16_t d, m; uint8_t qs[16]; };                // d * q + m
struct gcuda_block_q5_0 { gcuda_fp16_t d; uint8_t qh[4]; uint8_t qs[16]; };    // d * (q - 16), qh: bit 4 of the codes
struct gcuda_block_q5_1 { gcuda_fp16_t d, m; uint8_t qh[4]; uint8_t qs[16]; }; // d * q + m
struct gcuda_block_q8_0 { gcuda_fp16_t d; int8_t qs[32]; };                    // d * q
struct gcuda_block_q8_1 { gcuda_fp16_t d, s; int8_t qs[32]; };                 // d * q, s = d * sum of q
struct gcuda_block_iq4_nl { gcuda_fp16_t d; uint8_t qs[16]; };                 // d * codebook[q]
struct gcuda_block_mxfp4 { uint8_t e; uint8_t qs[16]; };                       // 2^(e - 128) * doubled E2M1

// 256 elements in sub-blocks of 16 or 32, each with its own small integer scale (and offset)
struct gcuda_block_q2_k { uint8_t scales[16]; uint8_t qs[64]; gcuda_fp16_t d, dmin; };
struct gcuda_block_q3_k { uint8_t hmask[32]; uint8_t qs[64]; uint8_t scales[12]; gcuda_fp16_t d; };
struct gcuda_block_q4_k { gcuda_fp16_t d, dmin; uint8_t scales[12]; uint8_t qs[128]; };
struct gcuda_block_q5_k { gcuda_fp16_t d, dmin; uint8_t scales[12]; uint8_t qh[32]; uint8_t qs[128]; };
struct gcuda_block_q6_k { uint8_t ql[128]; uint8_t qh[64]; int8_t scales[16]; gcuda_fp16_t d; };
struct gcuda_block_q8_k { float d; int8_t qs[256]; int16_t bsums[16]; }; // bsums: sums of 16 codes each
struct gcuda_block_iq4_xs { gcuda_fp16_t d; uint16_t scales_h; uint8_t scales_l[4]; uint8_t qs[128]; };

// 256 elements, groups of 8 or 4 taken from a codebook, signs apart
struct gcuda_block_iq2_xxs { gcuda_fp16_t d; uint16_t qs[32]; }; // per 32: 4 codes, then 4 x 7 bits sign, 4 bits scale
struct gcuda_block_iq2_xs { gcuda_fp16_t d; uint16_t qs[32]; uint8_t scales[8]; };
struct gcuda_block_iq2_s { gcuda_fp16_t d; uint8_t qs[32]; uint8_t signs[32]; uint8_t qh[8]; uint8_t scales[8]; };
struct gcuda_block_iq3_xxs { gcuda_fp16_t d; uint8_t qs[64]; uint16_t scales_and_signs[16]; };
struct gcuda_block_iq3_s { gcuda_fp16_t d; uint8_t qs[64]; uint8_t qh[8]; uint8_t signs[32]; uint8_t scales[4]; };
struct gcuda_block_iq1_s { gcuda_fp16_t d; uint8_t qs[32]; uint16_t qh[8]; };
struct gcuda_block_iq1_m { uint8_t qs[32]; uint8_t qh[16]; uint16_t scales[4]; }; // d: top nibbles of scales
// clang-format on

typedef void (*gcuda_to_float_t)(const void * x, float * y, int64_t n);   // n elements, whole blocks
typedef void (*gcuda_from_float_t)(const float * x, void * y, int64_t n); // n elements, whole blocks

struct gcuda_type_traits {
    const char * type_name; // NULL for the ids that GGUF has retired
    int64_t blck_size;      // elements of a block
    size_t type_size;       // bytes of a block
    bool is_quantized;
    gcuda_to_float_t to_float;         // NULL: integers
    gcuda_from_float_t from_float_ref; // NULL: integers, IQ1_*, IQ2_*, IQ3_*
};

// NULL for an invalid id.
GCUDA_API const struct gcuda_type_traits * gcuda_get_type_traits(enum gcuda_type type);
GCUDA_API bool gcuda_type_is_valid(enum gcuda_type type);
GCUDA_API const char * gcuda_type_name(enum gcuda_type type); // "invalid" for an invalid id
GCUDA_API int64_t gcuda_blck_size(enum gcuda_type type);      // elements; 0 for an invalid id
GCUDA_API size_t gcuda_type_size(enum gcuda_type type);       // bytes of a block; 0 for an invalid id
GCUDA_API size_t gcuda_row_size(enum gcuda_type type, int64_t ne); // bytes of ne elements; 0 if not whole blocks or too large
GCUDA_API bool gcuda_is_quantized(enum gcuda_type type);

// Round to nearest even; NaN stays NaN.
GCUDA_API float gcuda_fp16_to_fp32(gcuda_fp16_t x);
GCUDA_API gcuda_fp16_t gcuda_fp32_to_fp16(float x);
GCUDA_API float gcuda_bf16_to_fp32(gcuda_bf16_t x);
GCUDA_API gcuda_bf16_t gcuda_fp32_to_bf16(float x);
GCUDA_API void gcuda_fp16_to_fp32_row(const gcuda_fp16_t * x, float * y, int64_t n);
GCUDA_API void gcuda_fp32_to_fp16_row(const float * x, gcuda_fp16_t * y, int64_t n);
GCUDA_API void gcuda_bf16_to_fp32_row(const gcuda_bf16_t * x, float * y, int64_t n);
GCUDA_API void gcuda_fp32_to_bf16_row(const float * x, gcuda_bf16_t * y, int64_t n);

// =====================================================================================================
// >>tensor   struct gcuda_tensor, contexts, views, layout predicates
// =====================================================================================================

struct gcuda_context;
struct gcuda_cgraph;
struct gcuda_backend_buffer;
struct gcuda_tensor;

enum gcuda_tensor_flag {
    GCUDA_TENSOR_FLAG_INPUT = 1,    // set from outside; placed before anything computed
    GCUDA_TENSOR_FLAG_OUTPUT = 2,   // read from outside; its memory is never reused
    GCUDA_TENSOR_FLAG_PARAM = 4,    // trainable
    GCUDA_TENSOR_FLAG_LOSS = 8,     // scalar to be minimised
    GCUDA_TENSOR_FLAG_COMPUTE = 16  // reachable from a requested result; set by graph expansion
};

struct gcuda_init_params {
    size_t mem_size;   // bytes of the arena; 0: it grows as needed (mem_buffer must be NULL then)
    void * mem_buffer; // caller's memory of mem_size bytes, kept by the caller; NULL: allocated here
    bool no_alloc;     // tensors get no data: a backend buffer will hold it
};

// A context is an arena of tensors and graphs. One thread at a time. NULL when out of memory.
// It keeps the first error of any constructor: constructors given NULL pass it on, and building a graph from the
// context fails with that first message until gcuda_context_clear_error.
GCUDA_API struct gcuda_context * gcuda_init(struct gcuda_init_params params);
GCUDA_API void gcuda_free(struct gcuda_context * ctx); // NULL is allowed; frees no backend buffers
GCUDA_API void gcuda_reset(struct gcuda_context * ctx); // forgets all tensors, graphs and errors, keeps the memory
GCUDA_API size_t gcuda_used_mem(const struct gcuda_context * ctx); // bytes
GCUDA_API size_t gcuda_get_mem_size(const struct gcuda_context * ctx); // bytes, 0 for NULL
GCUDA_API void * gcuda_get_mem_buffer(const struct gcuda_context * ctx); // first block of the arena
GCUDA_API size_t gcuda_get_max_tensor_size(const struct gcuda_context * ctx); // nbytes of the largest tensor
GCUDA_API bool gcuda_get_no_alloc(const struct gcuda_context * ctx);
GCUDA_API void gcuda_set_no_alloc(struct gcuda_context * ctx, bool no_alloc);
GCUDA_API gcuda_status gcuda_context_status(const struct gcuda_context * ctx);
GCUDA_API const char * gcuda_context_error(const struct gcuda_context * ctx); // "" if none
GCUDA_API void gcuda_context_clear_error(struct gcuda_context * ctx);

// Bytes of a context that one tensor's description takes (data not counted).
GCUDA_API size_t gcuda_tensor_overhead(void);

// New tensors have contiguous strides and zeroed fields; data is uninitialised. ne[i] >= 0, ne[0] whole blocks.
// NULL on failure; the context keeps the error.
GCUDA_API struct gcuda_tensor * gcuda_new_tensor(struct gcuda_context * ctx, enum gcuda_type type, int n_dims, const int64_t * ne);
GCUDA_API struct gcuda_tensor * gcuda_new_tensor_1d(struct gcuda_context * ctx, enum gcuda_type type, int64_t ne0);
GCUDA_API struct gcuda_tensor * gcuda_new_tensor_2d(struct gcuda_context * ctx, enum gcuda_type type, int64_t ne0, int64_t ne1);
GCUDA_API struct gcuda_tensor * gcuda_new_tensor_3d(struct gcuda_context * ctx, enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2);
GCUDA_API struct gcuda_tensor * gcuda_new_tensor_4d(struct gcuda_context * ctx, enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3);
GCUDA_API struct gcuda_tensor * gcuda_new_i32(struct gcuda_context * ctx, int32_t value); // contexts with data only
GCUDA_API struct gcuda_tensor * gcuda_new_f32(struct gcuda_context * ctx, float value);   // contexts with data only
GCUDA_API void * gcuda_new_buffer(struct gcuda_context * ctx, size_t n_bytes); // raw bytes of the arena
GCUDA_API struct gcuda_tensor * gcuda_dup_tensor(struct gcuda_context * ctx, const struct gcuda_tensor * src); // same type and shape
GCUDA_API struct gcuda_tensor * gcuda_view_tensor(struct gcuda_context * ctx, struct gcuda_tensor * src); // same memory, ne and nb

// Tensors of a context in creation order, or by name (NULL if there is none).
GCUDA_API struct gcuda_tensor * gcuda_get_first_tensor(const struct gcuda_context * ctx);
GCUDA_API struct gcuda_tensor * gcuda_get_next_tensor(const struct gcuda_context * ctx, const struct gcuda_tensor * tensor);
GCUDA_API struct gcuda_tensor * gcuda_get_tensor(const struct gcuda_context * ctx, const char * name);

GCUDA_API const char * gcuda_get_name(const struct gcuda_tensor * tensor); // "" for NULL
GCUDA_API struct gcuda_tensor * gcuda_set_name(struct gcuda_tensor * tensor, const char * name); // cut to 63 bytes
GCUDA_API struct gcuda_tensor * gcuda_format_name(struct gcuda_tensor * tensor, const char * fmt, ...);
GCUDA_API void gcuda_set_input(struct gcuda_tensor * tensor);
GCUDA_API void gcuda_set_output(struct gcuda_tensor * tensor);
GCUDA_API gcuda_status gcuda_set_param(struct gcuda_tensor * tensor); // fails unless op is NONE
GCUDA_API gcuda_status gcuda_set_loss(struct gcuda_tensor * tensor);  // fails unless a scalar F32

GCUDA_API void * gcuda_get_data(const struct gcuda_tensor * tensor);
GCUDA_API float * gcuda_get_data_f32(const struct gcuda_tensor * tensor); // NULL for another type
GCUDA_API struct gcuda_tensor * gcuda_set_zero(struct gcuda_tensor * tensor); // host or backend memory; NULL on failure

// One element of a tensor in host memory, converted; index checked (0 and an error message when out of range).
GCUDA_API float gcuda_get_f32_1d(const struct gcuda_tensor * tensor, int64_t i); // i-th element in logical order
GCUDA_API gcuda_status gcuda_set_f32_1d(struct gcuda_tensor * tensor, int64_t i, float value);
GCUDA_API float gcuda_get_f32_nd(const struct gcuda_tensor * tensor, int64_t i0, int64_t i1, int64_t i2, int64_t i3);
GCUDA_API gcuda_status gcuda_set_f32_nd(struct gcuda_tensor * tensor, int64_t i0, int64_t i1, int64_t i2, int64_t i3, float value);
GCUDA_API gcuda_status gcuda_set_f32(struct gcuda_tensor * tensor, float value); // all elements
GCUDA_API gcuda_status gcuda_set_i32(struct gcuda_tensor * tensor, int32_t value); // all elements

GCUDA_API int64_t gcuda_nelements(const struct gcuda_tensor * tensor);
GCUDA_API int64_t gcuda_nrows(const struct gcuda_tensor * tensor); // ne[1] * ne[2] * ne[3]
GCUDA_API size_t gcuda_nbytes(const struct gcuda_tensor * tensor);  // extent in memory, gaps included
GCUDA_API size_t gcuda_nbytes_pad(const struct gcuda_tensor * tensor); // rounded up to GCUDA_MEM_ALIGN
GCUDA_API size_t gcuda_element_size(const struct gcuda_tensor * tensor); // bytes of a block
GCUDA_API int gcuda_n_dims(const struct gcuda_tensor * tensor);      // at least 1
GCUDA_API bool gcuda_is_empty(const struct gcuda_tensor * tensor);
GCUDA_API bool gcuda_is_scalar(const struct gcuda_tensor * tensor);
GCUDA_API bool gcuda_is_vector(const struct gcuda_tensor * tensor);
GCUDA_API bool gcuda_is_matrix(const struct gcuda_tensor * tensor);
GCUDA_API bool gcuda_is_3d(const struct gcuda_tensor * tensor);
GCUDA_API bool gcuda_is_view(const struct gcuda_tensor * tensor);
GCUDA_API bool gcuda_is_transposed(const struct gcuda_tensor * tensor); // nb[0] > nb[1]
GCUDA_API bool gcuda_is_permuted(const struct gcuda_tensor * tensor);
GCUDA_API bool gcuda_is_contiguous(const struct gcuda_tensor * tensor);
GCUDA_API bool gcuda_is_contiguous_0(const struct gcuda_tensor * tensor); // same as is_contiguous
GCUDA_API bool gcuda_is_contiguous_1(const struct gcuda_tensor * tensor); // dims >= 2 dense behind any nb[1]
GCUDA_API bool gcuda_is_contiguous_2(const struct gcuda_tensor * tensor); // dims >= 3 dense behind any nb[2]
GCUDA_API bool gcuda_is_contiguous_rows(const struct gcuda_tensor * tensor); // elements of a row adjacent
GCUDA_API bool gcuda_is_contiguously_allocated(const struct gcuda_tensor * tensor); // no gaps, maybe permuted
GCUDA_API bool gcuda_is_contiguous_channels(const struct gcuda_tensor * tensor); // memory order C W H N
GCUDA_API bool gcuda_is_padded_1d(const struct gcuda_tensor * tensor);
GCUDA_API bool gcuda_are_same_shape(const struct gcuda_tensor * a, const struct gcuda_tensor * b);
GCUDA_API bool gcuda_are_same_stride(const struct gcuda_tensor * a, const struct gcuda_tensor * b);
GCUDA_API bool gcuda_can_repeat(const struct gcuda_tensor * small, const struct gcuda_tensor * big);
GCUDA_API bool gcuda_can_repeat_rows(const struct gcuda_tensor * small, const struct gcuda_tensor * big);
GCUDA_API void gcuda_unravel_index(const struct gcuda_tensor * tensor, int64_t i, int64_t * i0, int64_t * i1, int64_t * i2, int64_t * i3);

// A tensor without a graph: what operations compute on, and what raw launchers take.
struct gcuda_array {
    void * data;
    enum gcuda_type type;
    int64_t ne[4]; // elements, ne[0] innermost
    size_t nb[4];  // strides in bytes; nb[0] is that of a block
};

// =====================================================================================================
// >>ops   GCUDA_OPS, the registry of operations; then one >>op:NAME block each: arguments, constructors
// =====================================================================================================
//
// To add an operation: its row here, its >>op: block in this section (arguments, constructors) and in >>impl-ops
// (constructor, check, args, CPU rows), its test. The compiler names whatever is missing.
//
//   name      gcudai_NAME_check and gcudai_NAME_cpu are its functions
//   sources   required, optional
//   flags     GCUDAI_OP_REUSE: the result may be placed on a source of the same layout
//             GCUDAI_OP_REUSE_FIRST: only on the first source
//             GCUDAI_OP_VIEW: the result aliases its source and nothing runs
//   args      struct gcuda_ARGS_args and gcudai_ARGS_args, shared within a family
//   work      gcudai_WORK_work says how the CPU splits the node
//   can       gcudai_CAN_can names what the CPU refuses of a well-formed node; any: nothing
#define GCUDAI_OP_REUSE 1
#define GCUDAI_OP_VIEW 2
#define GCUDAI_OP_REUSE_FIRST 4

// clang-format off
#define GCUDA_OPS(X)                                                                                  \
    /* id                name                 src opt flags            args            work   can  */ \
    /* views: no work at run time */                                                                  \
    X(RESHAPE,           reshape,             1,  0,  GCUDAI_OP_VIEW,  none,           none,  any)    \
    X(VIEW,              view,                1,  0,  GCUDAI_OP_VIEW,  none,           none,  any)    \
    X(PERMUTE,           permute,             1,  0,  GCUDAI_OP_VIEW,  none,           none,  any)    \
    X(TRANSPOSE,         transpose,           1,  0,  GCUDAI_OP_VIEW,  none,           none,  any)    \
    X(CUSTOM,            custom,              0,  10, 0,               custom,         custom, any)   \
    /* family ops-a: copies and data movement */                                                      \
    X(DUP,               dup,                 1,  0,  0,               cpy,            cpy,   any)    \
    X(CONT,              cont,                1,  0,  0,               cpy,            cpy,   any)    \
    X(CPY,               cpy,                 1,  1,  0,               cpy,            cpy,   quantizer) \
    X(GET_ROWS,          get_rows,            2,  0,  0,               get_rows,       pieces, any)   \
    X(GET_ROWS_BACK,     get_rows_back,       2,  0,  0,               get_rows,       get_rows_back, any) \
    X(SET_ROWS,          set_rows,            3,  0,  0,               get_rows,       set_rows, quantizer) \
    X(SET,               set,                 2,  0,  0,               set,            set,   any)    \
    X(ACC,               acc,                 2,  0,  0,               set,            acc,   any)    \
    X(REPEAT,            repeat,              1,  0,  0,               pad,            pieces, any)   \
    X(REPEAT_BACK,       repeat_back,         1,  0,  0,               cpy,            repeat_back, any) \
    X(CONCAT,            concat,              2,  0,  0,               concat,         concat, any)   \
    X(PAD,               pad,                 1,  0,  0,               pad,            pieces, any)   \
    X(PAD_REFLECT_1D,    pad_reflect_1d,      1,  0,  0,               pad_reflect_1d, pieces, any)   \
    X(ROLL,              roll,                1,  0,  0,               pad,            pieces, any)   \
    X(DIAG,              diag,                1,  0,  0,               mask,           pieces, any)   \
    X(DIAG_MASK_INF,     diag_mask_inf,       1,  0,  GCUDAI_OP_REUSE, mask,           pieces, any)   \
    X(DIAG_MASK_ZERO,    diag_mask_zero,      1,  0,  GCUDAI_OP_REUSE, mask,           pieces, any)   \
    X(TRI,               tri,                 1,  0,  0,               mask,           pieces, any)   \
    X(FILL,              fill,                1,  0,  GCUDAI_OP_REUSE, mask,           pieces, any)   \
    X(ARANGE,            arange,              0,  0,  0,               arange,         pieces, any)   \
    X(TIMESTEP_EMBEDDING, timestep_embedding, 1,  0,  0,               timestep_embedding, timestep_embedding, any) \
    /* end of ops-a */                                                                                \
    /* family ops-b: element-wise, norms, reductions, soft_max, rope, training */                     \
    X(ADD,               add,                 2,  0,  GCUDAI_OP_REUSE, binary,         elements, binary)  \
    X(SUB,               sub,                 2,  0,  GCUDAI_OP_REUSE, binary,         elements, binary)  \
    X(MUL,               mul,                 2,  0,  GCUDAI_OP_REUSE, binary,         elements, binary)  \
    X(DIV,               div,                 2,  0,  GCUDAI_OP_REUSE, binary,         elements, binary)  \
    X(ADD1,              add1,                2,  0,  GCUDAI_OP_REUSE, binary,         elements, binary)  \
    X(ADD_ID,            add_id,              3,  0,  GCUDAI_OP_REUSE_FIRST, add_id,   row_elements, any) \
    X(UNARY,             unary,               1,  0,  GCUDAI_OP_REUSE, unary,          unary, any)    \
    X(GLU,               glu,                 1,  1,  0,               glu,            row_elements, any) \
    X(SCALE,             scale,               1,  0,  GCUDAI_OP_REUSE, map,            elements, any)   \
    X(SQR,               sqr,                 1,  0,  GCUDAI_OP_REUSE, map,            elements, any)   \
    X(SQRT,              sqrt,                1,  0,  GCUDAI_OP_REUSE, map,            elements, any)   \
    X(SIN,               sin,                 1,  0,  0,               map,            elements, any)   \
    X(COS,               cos,                 1,  0,  0,               map,            elements, any)   \
    X(LOG,               log,                 1,  0,  GCUDAI_OP_REUSE, map,            elements, any)   \
    X(CLAMP,             clamp,               1,  0,  0,               map,            elements, any)   \
    X(LEAKY_RELU,        leaky_relu,          1,  0,  0,               map,            elements, any)   \
    X(SILU_BACK,         silu_back,           2,  0,  GCUDAI_OP_REUSE, binary,         elements, any)   \
    X(NORM,              norm,                1,  0,  0,               norm,           spans3, any)   \
    X(RMS_NORM,          rms_norm,            1,  0,  GCUDAI_OP_REUSE, norm,           spans2, any)   \
    X(L2_NORM,           l2_norm,             1,  0,  0,               norm,           spans2, any)   \
    X(RMS_NORM_BACK,     rms_norm_back,       2,  0,  GCUDAI_OP_REUSE, rms_norm_back,  spans2, any)   \
    X(GROUP_NORM,        group_norm,          1,  0,  0,               group_norm,     group_norm, any) \
    X(SUM,               sum,                 1,  0,  0,               sum,            total, any)    \
    X(SUM_ROWS,          sum_rows,            1,  0,  0,               reduce,         spans2, any)   \
    X(MEAN,              mean,                1,  0,  0,               reduce,         spans2, any)   \
    X(CUMSUM,            cumsum,              1,  0,  0,               reduce,         spans2, any)   \
    X(ARGMAX,            argmax,              1,  0,  0,               reduce,         argmax, any)   \
    X(COUNT_EQUAL,       count_equal,         2,  0,  0,               count_equal,    total, any)    \
    X(ARGSORT,           argsort,             1,  0,  0,               sort,           argsort, any)  \
    X(TOP_K,             top_k,               1,  0,  0,               sort,           top_k, any)    \
    X(SOFT_MAX,          soft_max,            1,  2,  GCUDAI_OP_REUSE, soft_max,       spans3, any)   \
    X(SOFT_MAX_BACK,     soft_max_back,       2,  0,  GCUDAI_OP_REUSE, soft_max_back,  spans2, any)   \
    X(ROPE,              rope,                2,  1,  GCUDAI_OP_REUSE, rope,           rope,  any)    \
    X(ROPE_BACK,         rope_back,           2,  1,  GCUDAI_OP_REUSE, rope,           rope,  any)    \
    X(CROSS_ENTROPY_LOSS, cross_entropy_loss, 2,  0,  0,               cross_entropy,  cross_entropy_loss, any) \
    X(CROSS_ENTROPY_LOSS_BACK, cross_entropy_loss_back, 3, 0, 0,       cross_entropy,  spans3, any)   \
    X(OPT_STEP_ADAMW,    opt_step_adamw,      5,  0,  0,               opt_step,       opt_step, any) \
    X(OPT_STEP_SGD,      opt_step_sgd,        3,  0,  0,               opt_step,       opt_step, any) \
    /* end of ops-b */                                                                                \
    /* family mulmat: matrix products */                                                              \
    X(MUL_MAT,           mul_mat,             2,  0,  0,               mul_mat, mul_mat, any)         \
    X(MUL_MAT_ID,        mul_mat_id,          3,  0,  0,               mul_mat_id, mul_mat_id, any)   \
    X(OUT_PROD,          out_prod,            2,  0,  0,               out_prod, out_prod, any)       \
    /* end of mulmat */                                                                               \
    /* family ops-c: attention, convolution, pooling, resampling, recurrent */                        \
    X(FLASH_ATTN_EXT,    flash_attn_ext,      3,  2,  0,               flash_attn_ext, flash_attn, any) \
    X(IM2COL,            im2col,              2,  0,  0,               conv,           im2col, any)   \
    X(IM2COL_BACK,       im2col_back,         2,  0,  0,               conv,           im2col_back, any) \
    X(IM2COL_3D,         im2col_3d,           2,  0,  0,               im2col_3d,      im2col, any)   \
    X(CONV_2D,           conv_2d,             2,  0,  0,               conv,           conv_2d, any)  \
    X(CONV_2D_DW,        conv_2d_dw,          2,  0,  0,               conv,           conv_2d_dw, any) \
    X(CONV_TRANSPOSE_1D, conv_transpose_1d,   2,  0,  0,               conv_transpose, conv_transpose, any) \
    X(CONV_TRANSPOSE_2D, conv_transpose_2d,   2,  0,  0,               conv_transpose, conv_transpose, any) \
    X(POOL_1D,           pool_1d,             1,  0,  0,               pool,           pool,   any)   \
    X(POOL_2D,           pool_2d,             1,  0,  0,               pool,           pool,   any)   \
    X(POOL_2D_BACK,      pool_2d_back,        2,  0,  0,               pool,           pool_2d_back, any) \
    X(UPSCALE,           upscale,             1,  0,  0,               upscale,        upscale, any)  \
    X(SSM_CONV,          ssm_conv,            2,  0,  0,               ssm_conv,       ssm_conv, any) \
    X(SSM_SCAN,          ssm_scan,            7,  0,  0,               ssm_scan,       ssm_scan, any) \
    X(RWKV_WKV6,         rwkv_wkv6,           6,  0,  0,               rwkv_wkv6,      linear_attn, any) \
    X(GATED_LINEAR_ATTN, gated_linear_attn,   5,  0,  0,               gated_linear_attn, linear_attn, any) \
    X(RWKV_WKV7,         rwkv_wkv7,           7,  0,  0,               rwkv_wkv7,      linear_attn, any) \
    X(SOLVE_TRI,         solve_tri,           2,  0,  0,               solve_tri,      solve_tri, any) \
    /* end of ops-c */

// One entry per argument struct: struct gcuda_NAME_args is the member NAME of the union that CPU functions get.
#define GCUDA_ARGS(X)                            \
    X(none) X(custom)                            \
    /* ops-a */                                  \
    X(cpy) X(get_rows) X(set) X(concat) X(pad)   \
    X(pad_reflect_1d) X(mask) X(arange)          \
    X(timestep_embedding)                        \
    /* end of ops-a */                           \
    /* ops-b */                                  \
    X(binary) X(add_id) X(unary) X(glu) X(map)   \
    X(norm) X(rms_norm_back) X(group_norm)       \
    X(reduce) X(sum) X(count_equal) X(sort)      \
    X(soft_max) X(soft_max_back) X(rope)         \
    X(cross_entropy) X(opt_step)                 \
    /* end of ops-b */                           \
    /* mulmat */                                 \
    X(mul_mat) X(mul_mat_id) X(out_prod)         \
    /* end of mulmat */                          \
    /* ops-c */                                  \
    X(flash_attn_ext) X(conv) X(im2col_3d) X(conv_transpose) X(pool) X(upscale)  \
    X(ssm_conv) X(ssm_scan) X(rwkv_wkv6) X(gated_linear_attn) X(rwkv_wkv7)       \
    X(solve_tri)                                 \
    /* end of ops-c */
// clang-format on

enum gcuda_op {
    GCUDA_OP_NONE = 0,
#define X(ID, name, n_src, n_opt, flags, args, work, can) GCUDA_OP_##ID,
    GCUDA_OPS(X)
#undef X
    GCUDA_OP_COUNT
};

GCUDA_API const char * gcuda_op_name(enum gcuda_op op); // "RMS_NORM"; "invalid"
// Name of what the node does, with the sub-operation: "GELU" for a unary node, "SWIGLU" for a GLU node.
GCUDA_API const char * gcuda_op_desc(const struct gcuda_tensor * tensor);

enum gcuda_prec { GCUDA_PREC_DEFAULT = 0, GCUDA_PREC_F32 = 10 };

struct gcuda_tensor {
    enum gcuda_type type;
    enum gcuda_op op; // what computes it; NONE: a leaf
    int64_t ne[GCUDA_MAX_DIMS]; // elements, ne[0] innermost; unused dimensions are 1
    size_t nb[GCUDA_MAX_DIMS];  // strides in bytes; nb[0] is that of a block
    int32_t op_params[GCUDA_MAX_OP_PARAMS / sizeof(int32_t)];
    int32_t flags; // GCUDA_TENSOR_FLAG_*
    struct gcuda_tensor * src[GCUDA_MAX_SRC];
    struct gcuda_tensor * view_src; // owner of the memory (never itself a view), or NULL
    size_t view_offs;               // bytes into the owner
    void * data;
    struct gcuda_backend_buffer * buffer; // owner of the memory behind data; NULL: the context's
    void * extra;                         // the backend's
    char name[GCUDA_MAX_NAME];
};

// >>op:none -------------------------------------------------------------------------------------------
struct gcuda_none_args {
    int unused;
};

// >>op:reshape ----------------------------------------------------------------------------------------
// The same elements in another shape: a view. a must be contiguous, the element counts equal.
GCUDA_API struct gcuda_tensor * gcuda_reshape(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b); // b gives the shape
GCUDA_API struct gcuda_tensor * gcuda_reshape_1d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0);
GCUDA_API struct gcuda_tensor * gcuda_reshape_2d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1);
GCUDA_API struct gcuda_tensor * gcuda_reshape_3d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1, int64_t ne2);
GCUDA_API struct gcuda_tensor * gcuda_reshape_4d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3);

// >>op:view -------------------------------------------------------------------------------------------
// Part of a's memory under a new shape. Strides and offset in bytes; nb[0] is the type size, missing strides are
// dense. The part must lie inside the memory of a's owner.
GCUDA_API struct gcuda_tensor * gcuda_view_1d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, size_t offset);
GCUDA_API struct gcuda_tensor * gcuda_view_2d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1, size_t nb1, size_t offset);
GCUDA_API struct gcuda_tensor * gcuda_view_3d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1, int64_t ne2, size_t nb1, size_t nb2, size_t offset);
GCUDA_API struct gcuda_tensor * gcuda_view_4d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3, size_t nb1, size_t nb2, size_t nb3, size_t offset);

// >>op:permute ----------------------------------------------------------------------------------------
// Dimensions in another order, a view: dimension k of a becomes dimension axis_k of the result.
GCUDA_API struct gcuda_tensor * gcuda_permute(struct gcuda_context * ctx, struct gcuda_tensor * a, int axis0, int axis1, int axis2, int axis3);

// >>op:transpose --------------------------------------------------------------------------------------
// Dimensions 0 and 1 exchanged, a view.
GCUDA_API struct gcuda_tensor * gcuda_transpose(struct gcuda_context * ctx, struct gcuda_tensor * a);

// >>op:custom -----------------------------------------------------------------------------------------
// An operation of the caller's on host data. fun runs n_tasks times, as task ith of nth, on any thread and in any
// order; it reads dst->src[] and writes its share of dst. Errors inside are the caller's to report.
//   n_tasks   GCUDA_N_TASKS_MAX: as many as the backend has threads
//   returns   map_custom: shape and type of a; custom_4d: the type and shape given; inplace: a view of a
typedef void (*gcuda_custom1_op_t)(struct gcuda_tensor * dst, const struct gcuda_tensor * a, int ith, int nth, void * userdata);
typedef void (*gcuda_custom2_op_t)(struct gcuda_tensor * dst, const struct gcuda_tensor * a, const struct gcuda_tensor * b, int ith, int nth, void * userdata);
typedef void (*gcuda_custom3_op_t)(struct gcuda_tensor * dst, const struct gcuda_tensor * a, const struct gcuda_tensor * b, const struct gcuda_tensor * c, int ith, int nth, void * userdata);
typedef void (*gcuda_custom_op_t)(struct gcuda_tensor * dst, int ith, int nth, void * userdata);
#define GCUDA_N_TASKS_MAX (-1)
struct gcuda_custom_args {
    struct gcuda_tensor * dst;
    void (*fun)(void);
    void * userdata;
    int kind;    // 1..3: map_custom with that many sources; 4: custom
    int n_tasks; // at least 1
};
GCUDA_API struct gcuda_tensor * gcuda_map_custom1(struct gcuda_context * ctx, struct gcuda_tensor * a, gcuda_custom1_op_t fun, int n_tasks, void * userdata);
GCUDA_API struct gcuda_tensor * gcuda_map_custom1_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, gcuda_custom1_op_t fun, int n_tasks, void * userdata);
GCUDA_API struct gcuda_tensor * gcuda_map_custom2(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, gcuda_custom2_op_t fun, int n_tasks, void * userdata);
GCUDA_API struct gcuda_tensor * gcuda_map_custom2_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, gcuda_custom2_op_t fun, int n_tasks, void * userdata);
GCUDA_API struct gcuda_tensor * gcuda_map_custom3(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c, gcuda_custom3_op_t fun, int n_tasks, void * userdata);
GCUDA_API struct gcuda_tensor * gcuda_map_custom3_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c, gcuda_custom3_op_t fun, int n_tasks, void * userdata);
GCUDA_API struct gcuda_tensor * gcuda_custom_4d(struct gcuda_context * ctx, enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3, struct gcuda_tensor ** args, int n_args, gcuda_custom_op_t fun, int n_tasks, void * userdata);
GCUDA_API struct gcuda_tensor * gcuda_custom_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor ** args, int n_args, gcuda_custom_op_t fun, int n_tasks, void * userdata);

// ---------------- ops-a: copies and data movement ----------------

// >>op:dup --------------------------------------------------------------------------------------------
// A copy of a.
//   a        any type, any strides
//   returns  type and shape of a, contiguous; inplace: a view of a, unchanged
struct gcuda_cpy_args { // of dup, cont, cpy, repeat_back
    struct gcuda_array x, y;
};
GCUDA_API struct gcuda_tensor * gcuda_dup(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_dup_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);

// >>op:cont -------------------------------------------------------------------------------------------
// A contiguous copy of a, the numbered forms in another shape of as many elements (rows of whole blocks).
GCUDA_API struct gcuda_tensor * gcuda_cont(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_cont_1d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0);
GCUDA_API struct gcuda_tensor * gcuda_cont_2d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1);
GCUDA_API struct gcuda_tensor * gcuda_cont_3d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1, int64_t ne2);
GCUDA_API struct gcuda_tensor * gcuda_cont_4d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3);

// >>op:cpy --------------------------------------------------------------------------------------------
// Copies a into the memory of b and converts: the k-th element of a, i0 fastest, becomes the k-th of b. The shapes may
// differ, the element counts not. a and b must not overlap.
//
//   plain types      any to any. F32, F16, BF16: to nearest, ties to even, beyond the range infinite. To integers:
//                    towards zero, saturating, NaN becomes 0
//   quantized types  from and to F32, F16, BF16 and F64, rows packed and whole blocks on both sides; to the same type
//                    block by block, strides free. The CPU refuses types without a quantizer as the result
//   returns          a view of b; cast: a new contiguous tensor with the shape of a
//   fails            NULL: counts differ, no conversion between the types, rows of part blocks, b overlaps itself
GCUDA_API struct gcuda_tensor * gcuda_cpy(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);
GCUDA_API struct gcuda_tensor * gcuda_cast(struct gcuda_context * ctx, struct gcuda_tensor * a, enum gcuda_type type);

// >>op:get_rows ---------------------------------------------------------------------------------------
// Rows of a by index:  y[i, r, j1, j2] = a[i, b[r, j1, j2], j1, j2].
//
//   a        [n, m, B1, B2]  any type, any strides
//   b        [R, B1, B2]     I32, any strides; indices in [0, m), rows may repeat
//   returns  [n, R, B1, B2]  F32, integers keep their type; contiguous
//   fails    NULL: other shapes or types. An index out of range gives a row of zeros and GCUDA_STATUS_INVALID_DATA
struct gcuda_get_rows_args { // also of get_rows_back, set_rows
    struct gcuda_array x, ids, y;
};
GCUDA_API struct gcuda_tensor * gcuda_get_rows(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);

// >>op:get_rows_back ----------------------------------------------------------------------------------
// Gradient of get_rows for a matrix: row j of the result is the sum of all rows r of a with b[r] == j, in order of r.
//
//   a        [n, R]  F32, F16 or BF16: gradient of the rows
//   b        [R]     I32; an index out of range is left out and reported
//   c        [n, m]  only its shape counts
//   returns  [n, m]  F32
GCUDA_API struct gcuda_tensor * gcuda_get_rows_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c);

// >>op:set_rows ---------------------------------------------------------------------------------------
// Writes rows of b into a:  a[:, c[i1, i2 mod c.ne1, i3 mod c.ne2], i2, i3] = b[:, i1, i2, i3], converted as by cpy.
// Sources of the node are b, c, a in this order.
//
//   a        [n, m, B2, B3]  any type but integers, packed rows; other rows keep their content
//   b        [n, R, B2, B3]  F32, F16 or BF16, packed rows
//   c        [R, C1, C2]     I64 or I32; C1 divides B2, C2 divides B3. Of equal indices the last row stays
//   returns  a view of a
//   fails    NULL: other shapes or types. A row with an index out of range is dropped: GCUDA_STATUS_INVALID_DATA
GCUDA_API struct gcuda_tensor * gcuda_set_rows(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c);

// >>op:set --------------------------------------------------------------------------------------------
// A copy of a with b written over a region of it. Element [i0, i1, i2, i3] of b goes to the byte
// offset + i0 * nb0 + i1 * nb1 + i2 * nb2 + i3 * nb3, with nb0 the type size: strides need not be those of a.
//
//   a        any type, contiguous
//   b        type of a, any strides, at most as many elements
//   nb*      bytes, multiples of the type size; the region lies inside the result and does not overlap itself
//   returns  type and shape of a; inplace: a view of a, whose other elements stay. 1d: nb* of a; 2d: nb2, nb3 of a
struct gcuda_set_args { // also of acc
    struct gcuda_array a, b, y;
    struct gcuda_array region; // of y: data and strides as above, shape of b
};
GCUDA_API struct gcuda_tensor * gcuda_set(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, size_t nb1, size_t nb2, size_t nb3, size_t offset);
GCUDA_API struct gcuda_tensor * gcuda_set_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, size_t nb1, size_t nb2, size_t nb3, size_t offset);
GCUDA_API struct gcuda_tensor * gcuda_set_1d(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, size_t offset);
GCUDA_API struct gcuda_tensor * gcuda_set_1d_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, size_t offset);
GCUDA_API struct gcuda_tensor * gcuda_set_2d(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, size_t nb1, size_t offset);
GCUDA_API struct gcuda_tensor * gcuda_set_2d_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, size_t nb1, size_t offset);

// >>op:acc --------------------------------------------------------------------------------------------
// As set, with b added to the region. a and b: F32, F16 or BF16 each, the sum rounded once to the type of a.
GCUDA_API struct gcuda_tensor * gcuda_acc(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, size_t nb1, size_t nb2, size_t nb3, size_t offset);
GCUDA_API struct gcuda_tensor * gcuda_acc_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, size_t nb1, size_t nb2, size_t nb3, size_t offset);

// >>op:repeat -----------------------------------------------------------------------------------------
// a side by side until it fills a larger shape whose extents are multiples of its own.
//   a        any plain type, any strides
//   b        only its shape counts
//   returns  type of a, shape of b or the one given
GCUDA_API struct gcuda_tensor * gcuda_repeat(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);
GCUDA_API struct gcuda_tensor * gcuda_repeat_4d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3);

// >>op:repeat_back ------------------------------------------------------------------------------------
// Gradient of repeat: each element of the result is the sum of all elements of a that are copies of it.
//   a        F32, F16 or BF16, any strides
//   b        only its shape counts; its extents divide those of a
//   returns  type of a, shape of b. Sums in double, rounded once
GCUDA_API struct gcuda_tensor * gcuda_repeat_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);

// >>op:concat -----------------------------------------------------------------------------------------
// a, then b, along dimension dim (0 to 3).
//   a, b     one type, any strides; all other extents equal. Either may be empty
//   returns  their type, contiguous
struct gcuda_concat_args {
    struct gcuda_array a, b, y;
    int dim;
};
GCUDA_API struct gcuda_tensor * gcuda_concat(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int dim);

// >>op:pad --------------------------------------------------------------------------------------------
// a with lp elements before and rp behind it in each dimension: zeros, or a itself continued around (circular).
//   a        any plain type, any strides
//   lp, rp   at least 0, elements; circular may wrap any number of times
//   returns  type of a, extents ne + lp + rp
struct gcuda_pad_args { // also of repeat and roll, which are circular
    struct gcuda_array x, y;
    int64_t lp[4]; // y[i] = x[i - lp]
    bool is_circular;
};
GCUDA_API struct gcuda_tensor * gcuda_pad(struct gcuda_context * ctx, struct gcuda_tensor * a, int p0, int p1, int p2, int p3);
GCUDA_API struct gcuda_tensor * gcuda_pad_ext(struct gcuda_context * ctx, struct gcuda_tensor * a, int lp0, int rp0, int lp1, int rp1, int lp2, int rp2, int lp3, int rp3);
GCUDA_API struct gcuda_tensor * gcuda_pad_circular(struct gcuda_context * ctx, struct gcuda_tensor * a, int p0, int p1, int p2, int p3);
GCUDA_API struct gcuda_tensor * gcuda_pad_ext_circular(struct gcuda_context * ctx, struct gcuda_tensor * a, int lp0, int rp0, int lp1, int rp1, int lp2, int rp2, int lp3, int rp3);

// >>op:pad_reflect_1d ---------------------------------------------------------------------------------
// Rows continued by their mirror image, p0 elements before and p1 behind, the border element not repeated.
//   a        any plain type, any strides
//   p0, p1   0 to ne0 - 1
//   returns  type of a, [ne0 + p0 + p1, ne1, ne2, ne3]
struct gcuda_pad_reflect_1d_args {
    struct gcuda_array x, y;
    int64_t p0;
};
GCUDA_API struct gcuda_tensor * gcuda_pad_reflect_1d(struct gcuda_context * ctx, struct gcuda_tensor * a, int p0, int p1);

// >>op:roll -------------------------------------------------------------------------------------------
// Elements moved by shift in each dimension, those that leave at one end enter at the other.
//   a        any plain type, any strides
//   shift    -ne < shift < ne
//   returns  type and shape of a
GCUDA_API struct gcuda_tensor * gcuda_roll(struct gcuda_context * ctx, struct gcuda_tensor * a, int shift0, int shift1, int shift2, int shift3);

// >>op:diag -------------------------------------------------------------------------------------------
// Rows as diagonals of square matrices:  y[i, i] = a[i, 0], zero elsewhere.
//   a        [n, 1, ne2, ne3]  any plain type
//   returns  [n, n, ne2, ne3]  type of a
struct gcuda_mask_args { // also of diag_mask_inf, diag_mask_zero, tri and fill
    struct gcuda_array x, y; // x has the shape of y; of diag its nb[1] is 0
    int64_t from, to;        // x is kept where from <= i0 - i1 < to
    float value;             // elsewhere
};
GCUDA_API struct gcuda_tensor * gcuda_diag(struct gcuda_context * ctx, struct gcuda_tensor * a);

// >>op:diag_mask_inf ----------------------------------------------------------------------------------
// a with -infinity where i0 > n_past + i1: what a token may not attend to.
//   a        F32, F16 or BF16, any strides
//   n_past   at least 0
//   returns  type and shape of a; inplace: a view of a
GCUDA_API struct gcuda_tensor * gcuda_diag_mask_inf(struct gcuda_context * ctx, struct gcuda_tensor * a, int n_past);
GCUDA_API struct gcuda_tensor * gcuda_diag_mask_inf_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, int n_past);

// >>op:diag_mask_zero ---------------------------------------------------------------------------------
// The same with zero, also over NaN.
GCUDA_API struct gcuda_tensor * gcuda_diag_mask_zero(struct gcuda_context * ctx, struct gcuda_tensor * a, int n_past);
GCUDA_API struct gcuda_tensor * gcuda_diag_mask_zero_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, int n_past);

// >>op:tri --------------------------------------------------------------------------------------------
// A triangle of square matrices, zero elsewhere, also over NaN.
//   a        [n, n, ne2, ne3]  F32, F16 or BF16, any strides
//   returns  type and shape of a
enum gcuda_tri_type {
    GCUDA_TRI_TYPE_UPPER_DIAG = 0, // keeps column i0 >= row i1
    GCUDA_TRI_TYPE_UPPER = 1,      // i0 > i1
    GCUDA_TRI_TYPE_LOWER_DIAG = 2, // i0 <= i1
    GCUDA_TRI_TYPE_LOWER = 3       // i0 < i1
};
GCUDA_API struct gcuda_tensor * gcuda_tri(struct gcuda_context * ctx, struct gcuda_tensor * a, enum gcuda_tri_type type);

// >>op:fill -------------------------------------------------------------------------------------------
// Every element c; the content of a is not read.
//   a        F32, F16 or BF16
//   returns  type and shape of a; inplace: a view of a
GCUDA_API struct gcuda_tensor * gcuda_fill(struct gcuda_context * ctx, struct gcuda_tensor * a, float c);
GCUDA_API struct gcuda_tensor * gcuda_fill_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, float c);

// >>op:arange -----------------------------------------------------------------------------------------
// start, start + step, ... below stop:  y[i] = start + step * i.
//   step     above 0, stop above start
//   returns  [ceil((stop - start) / step)]  F32
struct gcuda_arange_args {
    struct gcuda_array y;
    float start, step;
};
GCUDA_API struct gcuda_tensor * gcuda_arange(struct gcuda_context * ctx, float start, float stop, float step);

// >>op:timestep_embedding -----------------------------------------------------------------------------
// Sinusoidal embedding, cosines first: with h = dim / 2 and f = max_period^(-j / h) for j < h,
// y[j, n] = cos(t[n] * f), y[h + j, n] = sin(t[n] * f); the last element of an odd dim is 0.
//   timesteps   [N]  F32
//   max_period  at least 1; models use 10000
//   returns     [dim, N]  F32
struct gcuda_timestep_embedding_args {
    struct gcuda_array x, y;
    int max_period;
};
GCUDA_API struct gcuda_tensor * gcuda_timestep_embedding(struct gcuda_context * ctx, struct gcuda_tensor * timesteps, int dim, int max_period);

// ---------------- end of ops-a ----------------

// ---------------- ops-b: element-wise, norms, reductions, soft_max, rope, training ----------------

// >>op:add --------------------------------------------------------------------------------------------
// >>op:sub
// >>op:mul
// >>op:div
// y = a (+ - * /) b, element by element. b is repeated to the shape of a:  y[i] = a[i] o b[i mod b.ne], in every
// dimension. Computed in F32 with one rounding at the end; x/0 is infinite, 0/0 NaN.
//
//   a        F32, F16 or BF16; add also takes quantized a with F32 b of the same shape (dequantize, add, quantize)
//   b        F32, F16 or BF16; each extent divides that of a
//   returns  shape and type of a, contiguous; add_cast: of the given type (quantized a: F32); inplace: a view of a
//   fails    NULL: shapes that do not repeat, other types, a quantized type that the host cannot write
struct gcuda_binary_args { // also of add1, silu_back
    struct gcuda_array a, b, y;
};
GCUDA_API struct gcuda_tensor * gcuda_add(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);
GCUDA_API struct gcuda_tensor * gcuda_add_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);
GCUDA_API struct gcuda_tensor * gcuda_add_cast(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, enum gcuda_type type);
GCUDA_API struct gcuda_tensor * gcuda_sub(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);
GCUDA_API struct gcuda_tensor * gcuda_sub_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);
GCUDA_API struct gcuda_tensor * gcuda_mul(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);
GCUDA_API struct gcuda_tensor * gcuda_mul_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);
GCUDA_API struct gcuda_tensor * gcuda_div(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);
GCUDA_API struct gcuda_tensor * gcuda_div_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);

// >>op:add1 -------------------------------------------------------------------------------------------
// y[i] = a[i] + b[0]: b has one element. Types as in gcuda_add.
GCUDA_API struct gcuda_tensor * gcuda_add1(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);
GCUDA_API struct gcuda_tensor * gcuda_add1_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);

// >>op:add_id -----------------------------------------------------------------------------------------
// A bias row per expert:  y[i, u, t] = a[i, u, t] + b[i, ids[u, t]].
//
//   a        [n, U, T]  F32, F16 or BF16: n outputs of the U experts of each of T tokens
//   b        [n, E]     F32, F16 or BF16: one row per expert
//   ids      [U, T]     I32, 0 to E-1; another value adds nothing and the graph ends with GCUDA_STATUS_INVALID_DATA
//   returns  [n, U, T]  type of a, contiguous
struct gcuda_add_id_args {
    struct gcuda_array a, b, ids, y;
};
GCUDA_API struct gcuda_tensor * gcuda_add_id(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * ids);

// >>op:unary ------------------------------------------------------------------------------------------
// y = f(x), element by element; F32, F16 or BF16, computed in F32. S is the logistic function 1/(1+exp(-x)).
// The result has the type and shape of a and is contiguous; inplace: a view of a. Numbers are fixed: models hold them.
// clang-format off
#define GCUDA_UNARY_OPS(X)                                                                                     \
    X(ABS,          0) /* |x| */                                                                               \
    X(SGN,          1) /* -1, 0 or 1; NaN gives 0 */                                                           \
    X(NEG,          2) /* -x */                                                                                \
    X(STEP,         3) /* 1 if x > 0, else 0 */                                                                \
    X(TANH,         4)                                                                                         \
    X(ELU,          5) /* x if x > 0, else expm1(x);                     Clevert et al. 2015, 1511.07289 */    \
    X(RELU,         6) /* max(x, 0); NaN gives 0 */                                                            \
    X(SIGMOID,      7) /* S(x) */                                                                              \
    X(GELU,         8) /* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))  Hendrycks, Gimpel 2016, 1606.08415 */ \
    X(GELU_QUICK,   9) /* x S(1.702 x)                                   the same paper */                     \
    X(SILU,        10) /* x S(x)                                         the same; Swish in 1710.05941 */      \
    X(HARDSWISH,   11) /* x hardsigmoid(x)                               Howard et al. 2019, 1905.02244 */     \
    X(HARDSIGMOID, 12) /* min(1, max(0, (x + 3)/6)) */                                                         \
    X(EXP,         13)                                                                                         \
    X(EXPM1,       14) /* exp(x) - 1 without cancellation */                                                   \
    X(SOFTPLUS,    15) /* ln(1 + exp(x)); x where x > 20 */                                                    \
    X(GELU_ERF,    16) /* x/2 (1 + erf(x/sqrt(2))) */                                                          \
    X(XIELU,       17) /* see gcuda_xielu */                                                                   \
    X(FLOOR,       18)                                                                                         \
    X(CEIL,        19)                                                                                         \
    X(ROUND,       20) /* halves away from zero */                                                             \
    X(TRUNC,       21)
// clang-format on
enum gcuda_unary_op {
#define X(ID, value) GCUDA_UNARY_OP_##ID = value,
    GCUDA_UNARY_OPS(X)
#undef X
    GCUDA_UNARY_OP_COUNT
};
struct gcuda_unary_args {
    struct gcuda_array x, y;
    enum gcuda_unary_op op;
    float p[5]; // op_params; [1..4]: alpha_n', alpha_p', beta, eps of XIELU
};
GCUDA_API const char * gcuda_unary_op_name(enum gcuda_unary_op op); // "GELU"; "invalid"
GCUDA_API enum gcuda_unary_op gcuda_get_unary_op(const struct gcuda_tensor * tensor); // of a UNARY node, else GCUDA_UNARY_OP_COUNT
GCUDA_API struct gcuda_tensor * gcuda_unary(struct gcuda_context * ctx, struct gcuda_tensor * a, enum gcuda_unary_op op);
GCUDA_API struct gcuda_tensor * gcuda_unary_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, enum gcuda_unary_op op);
GCUDA_API struct gcuda_tensor * gcuda_abs(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_abs_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_sgn(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_sgn_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_neg(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_neg_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_step(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_step_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_tanh(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_tanh_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_elu(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_elu_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_relu(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_relu_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_sigmoid(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_sigmoid_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_gelu(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_gelu_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_gelu_erf(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_gelu_erf_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_gelu_quick(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_gelu_quick_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_silu(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_silu_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_hardswish(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_hardsigmoid(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_exp(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_exp_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_expm1(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_expm1_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_softplus(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_softplus_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_floor(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_floor_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_ceil(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_ceil_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_round(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_round_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_trunc(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_trunc_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);

// Huang, Schlag 2024, arXiv:2411.13010, with p = softplus(alpha_p) and n = beta + softplus(alpha_n):
//   x > 0: p x^2 + beta x        else: n (expm1(min(x, eps)) - x) + beta x
GCUDA_API struct gcuda_tensor * gcuda_xielu(struct gcuda_context * ctx, struct gcuda_tensor * a, float alpha_n, float alpha_p, float beta, float eps);

// >>op:glu --------------------------------------------------------------------------------------------
// Gated linear units, Shazeer 2020, arXiv:2002.05202:  y = f(x) g, with x and g the two halves of a's rows (swapped:
// g first), or two tensors (split).
//   REGLU relu   GEGLU gelu   SWIGLU silu   GEGLU_ERF gelu_erf   GEGLU_QUICK gelu_quick; as in gcuda_unary
//   SWIGLU_OAI   x' S(alpha x') (g' + 1) with x' = min(x, limit), g' = min(max(g, -limit), limit)
// REGLU is 0 wherever x is not positive, also when g is infinite or NaN.
//
//   a, b     F32, F16 or BF16, rows packed; split: the same shape and type
//   returns  [ne0/2, ...], split [ne0, ...], type of a, contiguous. An odd ne0 leaves the last element unused
enum gcuda_glu_op {
    GCUDA_GLU_OP_REGLU = 0,
    GCUDA_GLU_OP_GEGLU = 1,
    GCUDA_GLU_OP_SWIGLU = 2,
    GCUDA_GLU_OP_SWIGLU_OAI = 3,
    GCUDA_GLU_OP_GEGLU_ERF = 4,
    GCUDA_GLU_OP_GEGLU_QUICK = 5,
    GCUDA_GLU_OP_COUNT
};
struct gcuda_glu_args {
    struct gcuda_array x, g, y; // all of y's shape
    enum gcuda_glu_op op;
    float alpha, limit; // SWIGLU_OAI
};
GCUDA_API const char * gcuda_glu_op_name(enum gcuda_glu_op op); // "SWIGLU"; "invalid"
GCUDA_API enum gcuda_glu_op gcuda_get_glu_op(const struct gcuda_tensor * tensor); // of a GLU node, else GCUDA_GLU_OP_COUNT
GCUDA_API struct gcuda_tensor * gcuda_glu(struct gcuda_context * ctx, struct gcuda_tensor * a, enum gcuda_glu_op op, bool swapped);
GCUDA_API struct gcuda_tensor * gcuda_reglu(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_reglu_swapped(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_geglu(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_geglu_swapped(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_swiglu(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_swiglu_swapped(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_geglu_erf(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_geglu_erf_swapped(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_geglu_quick(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_geglu_quick_swapped(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_glu_split(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, enum gcuda_glu_op op);
GCUDA_API struct gcuda_tensor * gcuda_reglu_split(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);
GCUDA_API struct gcuda_tensor * gcuda_geglu_split(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);
GCUDA_API struct gcuda_tensor * gcuda_swiglu_split(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);
GCUDA_API struct gcuda_tensor * gcuda_geglu_erf_split(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);
GCUDA_API struct gcuda_tensor * gcuda_geglu_quick_split(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);
GCUDA_API struct gcuda_tensor * gcuda_swiglu_oai(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, float alpha, float limit);

// >>op:scale ------------------------------------------------------------------------------------------
// y = s a + b, for F32, F16 or BF16; type and shape of a, contiguous; inplace: a view of a.
struct gcuda_map_args { // also of sqr, sqrt, sin, cos, log, clamp, leaky_relu
    struct gcuda_array x, y;
    float p[2]; // s, b; min, max; slope
};
GCUDA_API struct gcuda_tensor * gcuda_scale(struct gcuda_context * ctx, struct gcuda_tensor * a, float s);
GCUDA_API struct gcuda_tensor * gcuda_scale_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, float s);
GCUDA_API struct gcuda_tensor * gcuda_scale_bias(struct gcuda_context * ctx, struct gcuda_tensor * a, float s, float b);
GCUDA_API struct gcuda_tensor * gcuda_scale_bias_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, float s, float b);

// >>op:sqr --------------------------------------------------------------------------------------------
// >>op:sqrt
// >>op:sin
// >>op:cos
// >>op:log
// Element by element, types and results as gcuda_scale. Roots and logarithms of negative numbers are NaN, log 0 is -inf.
GCUDA_API struct gcuda_tensor * gcuda_sqr(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_sqr_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_sqrt(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_sqrt_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_sin(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_sin_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_cos(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_cos_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_log(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_log_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);

// >>op:clamp ------------------------------------------------------------------------------------------
// min(max(a, min), max) in a's own memory: the result is always a view of a. min <= max; either may be infinite.
GCUDA_API struct gcuda_tensor * gcuda_clamp(struct gcuda_context * ctx, struct gcuda_tensor * a, float min, float max);

// >>op:leaky_relu -------------------------------------------------------------------------------------
// max(a, 0) + negative_slope min(a, 0). Types and result as gcuda_scale.
GCUDA_API struct gcuda_tensor * gcuda_leaky_relu(struct gcuda_context * ctx, struct gcuda_tensor * a, float negative_slope, bool inplace);

// >>op:silu_back --------------------------------------------------------------------------------------
// Derivative of gcuda_silu: a is the gradient of its result, b was its argument:  y = a S(b) (1 + b (1 - S(b))).
// Equal shapes; F32, F16 or BF16; the result has the type of a.
GCUDA_API struct gcuda_tensor * gcuda_silu_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);

// >>op:norm -------------------------------------------------------------------------------------------
// Each row to mean 0 and variance 1:  y = (x - m) / sqrt(v + eps), m = mean(x), v = mean((x - m)^2).
// Ba, Kiros, Hinton 2016, arXiv:1607.06450, without gain and bias. Types, result and failures as gcuda_rms_norm.
GCUDA_API struct gcuda_tensor * gcuda_norm(struct gcuda_context * ctx, struct gcuda_tensor * a, float eps);
GCUDA_API struct gcuda_tensor * gcuda_norm_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, float eps);

// >>op:rms_norm ---------------------------------------------------------------------------------------
// Root mean square norm of each row:  y[i] = x[i] / sqrt(mean_j(x[j]^2) + eps).
// Zhang & Sennrich 2019, arXiv:1910.07467, without its gain (multiply by that with gcuda_mul).
//
//   a        [ne0, ne1, ne2, ne3]  F32, F16 or BF16; elements of a row adjacent, rows anywhere
//   eps      added to the mean square, >= 0; models use 1e-5 or 1e-6
//   returns  [ne0, ne1, ne2, ne3]  type of a, contiguous; inplace: a view of a
//   fails    NULL, and ctx keeps the first error: a of another type or with strided rows, eps negative or NaN,
//            ctx full. a == NULL gives NULL and leaves the error that caused it in place
struct gcuda_norm_args { // also of norm, l2_norm
    struct gcuda_array x, y;
    float eps;
};
GCUDA_API struct gcuda_tensor * gcuda_rms_norm(struct gcuda_context * ctx, struct gcuda_tensor * a, float eps);
GCUDA_API struct gcuda_tensor * gcuda_rms_norm_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, float eps);

// >>op:l2_norm ----------------------------------------------------------------------------------------
// Each row to length 1:  y = x / max(sqrt(sum(x^2)), eps). Types, result and failures as gcuda_rms_norm.
GCUDA_API struct gcuda_tensor * gcuda_l2_norm(struct gcuda_context * ctx, struct gcuda_tensor * a, float eps);
GCUDA_API struct gcuda_tensor * gcuda_l2_norm_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, float eps);

// >>op:rms_norm_back ----------------------------------------------------------------------------------
// Derivative of gcuda_rms_norm: a is the gradient of its result, b was its argument. With n = ne0:
//   y = (a - b sum(a b) / (sum(b^2) + n eps)) / sqrt(sum(b^2)/n + eps)
// Equal shapes; F32, F16 or BF16 with packed rows; the result has the type of a.
struct gcuda_rms_norm_back_args {
    struct gcuda_array dy, x, dx;
    float eps;
};
GCUDA_API struct gcuda_tensor * gcuda_rms_norm_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, float eps);

// >>op:group_norm -------------------------------------------------------------------------------------
// Mean 0 and variance 1 over groups of channels, for each image: Wu, He 2018, arXiv:1803.08494, without gain and bias.
//
//   a        [W, H, C, N]  F32, F16 or BF16, packed rows
//   n_groups at least 1; a group is ceil(C / n_groups) channels, the last one what is left
//   eps      added to the variance, >= 0
//   returns  [W, H, C, N]  type of a, contiguous; inplace: a view of a
struct gcuda_group_norm_args {
    struct gcuda_array x, y;
    int n_groups;
    float eps;
};
GCUDA_API struct gcuda_tensor * gcuda_group_norm(struct gcuda_context * ctx, struct gcuda_tensor * a, int n_groups, float eps);
GCUDA_API struct gcuda_tensor * gcuda_group_norm_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, int n_groups, float eps);

// >>op:sum --------------------------------------------------------------------------------------------
// Sum of all elements of F32, F16 or BF16: one element of the type of a.
struct gcuda_sum_args {
    struct gcuda_array x, y;
};
GCUDA_API struct gcuda_tensor * gcuda_sum(struct gcuda_context * ctx, struct gcuda_tensor * a);

// >>op:sum_rows ---------------------------------------------------------------------------------------
// >>op:mean
// Sum and mean of each row of F32, F16 or BF16: [1, ne1, ne2, ne3], sum_rows in the type of a, mean in F32.
struct gcuda_reduce_args { // also of cumsum, argmax
    struct gcuda_array x, y;
};
GCUDA_API struct gcuda_tensor * gcuda_sum_rows(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_mean(struct gcuda_context * ctx, struct gcuda_tensor * a);

// >>op:cumsum -----------------------------------------------------------------------------------------
// Running sum along each row:  y[i] = sum of a[0..i]. F32, F16 or BF16; type and shape of a, contiguous.
GCUDA_API struct gcuda_tensor * gcuda_cumsum(struct gcuda_context * ctx, struct gcuda_tensor * a);

// >>op:argmax -----------------------------------------------------------------------------------------
// Index of the largest element of each row, the last one among equals; NaN counts as smaller than anything.
// a: matrix of F32, F16 or BF16, ne0 < 2^31. Returns I32 [ne1]; -1 for a row without elements.
GCUDA_API struct gcuda_tensor * gcuda_argmax(struct gcuda_context * ctx, struct gcuda_tensor * a);

// >>op:count_equal ------------------------------------------------------------------------------------
// In how many places a and b, I32 of one shape, are equal: I64 [1].
struct gcuda_count_equal_args {
    struct gcuda_array a, b, y;
};
GCUDA_API struct gcuda_tensor * gcuda_count_equal(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);

// >>op:argsort ----------------------------------------------------------------------------------------
// The permutation that sorts each row: I32 of the shape of a. a: F32, F16 or BF16, ne0 < 2^31. The order of equal
// elements is unspecified; NaN sorts as if beyond infinity, on the side of its sign.
enum gcuda_sort_order { GCUDA_SORT_ORDER_ASC = 0, GCUDA_SORT_ORDER_DESC = 1 };
struct gcuda_sort_args { // also of top_k
    struct gcuda_array x, y;
    enum gcuda_sort_order order;
};
GCUDA_API struct gcuda_tensor * gcuda_argsort(struct gcuda_context * ctx, struct gcuda_tensor * a, enum gcuda_sort_order order);
// The first k of a descending argsort: a view [k, ne1, ne2, ne3].
GCUDA_API struct gcuda_tensor * gcuda_argsort_top_k(struct gcuda_context * ctx, struct gcuda_tensor * a, int k);

// >>op:top_k ------------------------------------------------------------------------------------------
// Indices of the k largest elements of each row, in no particular order: I32 [k, ne1, ne2, ne3]. 1 <= k <= ne0; a as
// for gcuda_argsort. Cheaper than sorting.
GCUDA_API struct gcuda_tensor * gcuda_top_k(struct gcuda_context * ctx, struct gcuda_tensor * a, int k);

// >>op:soft_max ---------------------------------------------------------------------------------------
// Each row to probabilities:  y = exp(w - max w) / sum exp(w - max w),  w = scale a + slope(h) mask.
// slope is 1, or with max_bias > 0 that of ALiBi for head h = i2: Press et al. 2021, arXiv:2108.12409.
// Sinks join maximum and sum of their head, unscaled, without a place in the result: Xiao et al. 2023, 2309.17453.
// A row that is -inf throughout (all masked) gives zeros.
//
//   a         [n, rows, heads, batch]  F32, F16 or BF16, contiguous
//   mask      NULL, or [n, >= rows, m2, m3] F32, F16 or BF16, contiguous; m2 divides heads, m3 divides batch
//   max_bias  > 0 wants a mask
//   sinks     [heads] F32
//   returns   shape and type of a, contiguous; inplace: a view of a
// gcuda_soft_max_add_sinks changes a soft_max node; sinks that do not fit are an error here and again when the graph is
// computed. NULL takes them away.
struct gcuda_soft_max_args {
    struct gcuda_array x, mask, sinks, y; // mask, sinks: data is NULL when absent
    float scale, max_bias;
};
GCUDA_API struct gcuda_tensor * gcuda_soft_max(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_soft_max_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a);
GCUDA_API struct gcuda_tensor * gcuda_soft_max_ext(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * mask, float scale, float max_bias);
GCUDA_API struct gcuda_tensor * gcuda_soft_max_ext_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * mask, float scale, float max_bias);
GCUDA_API gcuda_status gcuda_soft_max_add_sinks(struct gcuda_tensor * a, struct gcuda_tensor * sinks);

// >>op:soft_max_back ----------------------------------------------------------------------------------
// Derivative of gcuda_soft_max_ext: a is the gradient of its result, b was its result:  y = scale b (a - sum(a b)).
// The mask does not enter. Equal shapes; F32, F16 or BF16, contiguous; the result has the type of a.
struct gcuda_soft_max_back_args {
    struct gcuda_array dy, y, dx;
    float scale;
};
GCUDA_API struct gcuda_tensor * gcuda_soft_max_ext_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, float scale, float max_bias);
GCUDA_API struct gcuda_tensor * gcuda_soft_max_ext_back_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, float scale, float max_bias);

// >>op:rope -------------------------------------------------------------------------------------------
// >>op:rope_back
// Rotary position embedding, Su et al. 2021, arXiv:2104.09864: pairs of elements of each row are rotated by
// position * freq_base^(-2j/n_dims) for pair j. Extended contexts by YaRN, Peng et al. 2023, arXiv:2309.00071;
// several position planes by Qwen2-VL, arXiv:2409.12191. Elements from n_dims on are copied.
//
//   a         [D, heads, tokens, batch]  F32, F16 or BF16
//   b         I32 positions [tokens]; modes with 8 set: [4 tokens], planes of time, height, width, extra
//   c         NULL, or F32 factors that divide the angle of pair j, one for each pair at least
//   n_dims    even, 2 to D; VISION: D / 2
//   mode      which elements are pairs, see below
//   sections  pairs per plane, in turn; one of the first three > 0, sum at most D
//   freq_scale   factor of the position; ext_factor  share of unscaled angle at high frequencies, 0: none
//   attn_factor  magnitude; n_ctx_orig, beta_fast, beta_slow  where YaRN's ramp lies
//   returns   type and shape of a, contiguous; inplace: a view of a
// _back rotates the other way: the derivative, a is the gradient.
enum gcuda_rope_type {
    GCUDA_ROPE_TYPE_NORMAL = 0,  // (2j, 2j + 1)
    GCUDA_ROPE_TYPE_NEOX = 2,    // (j, j + n_dims/2)
    GCUDA_ROPE_TYPE_MROPE = 8,   // as NEOX; the plane changes from section to section
    GCUDA_ROPE_TYPE_VISION = 24, // (j, j + n_dims); frequencies restart in every section
    GCUDA_ROPE_TYPE_IMROPE = 40  // as NEOX; planes interleaved: time, height, width, time ...
};
#define GCUDA_MROPE_SECTIONS 4
struct gcuda_rope_args {
    struct gcuda_array x, pos, factors, y; // factors: data is NULL when absent
    bool is_back;
    int n_dims, mode, n_ctx_orig;
    float freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow;
    int sections[GCUDA_MROPE_SECTIONS];
};
GCUDA_API struct gcuda_tensor * gcuda_rope(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int n_dims, int mode);
GCUDA_API struct gcuda_tensor * gcuda_rope_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int n_dims, int mode);
GCUDA_API struct gcuda_tensor * gcuda_rope_ext(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c, int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow);
GCUDA_API struct gcuda_tensor * gcuda_rope_ext_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c, int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow);
GCUDA_API struct gcuda_tensor * gcuda_rope_multi(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c, int n_dims, const int * sections, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow);
GCUDA_API struct gcuda_tensor * gcuda_rope_multi_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c, int n_dims, const int * sections, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow);
GCUDA_API struct gcuda_tensor * gcuda_rope_ext_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c, int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow);
GCUDA_API struct gcuda_tensor * gcuda_rope_multi_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c, int n_dims, const int * sections, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow);
// As gcuda_rope_ext without factors; for code that still uses the old names.
GCUDA_API struct gcuda_tensor * gcuda_rope_custom(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow);
GCUDA_API struct gcuda_tensor * gcuda_rope_custom_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow);
// First and last pair of YaRN's ramp: below dims[0] angles are extrapolated, above dims[1] interpolated. May be infinite.
GCUDA_API void gcuda_rope_yarn_corr_dims(int n_dims, int n_ctx_orig, float freq_base, float beta_fast, float beta_slow, float dims[2]);

// >>op:cross_entropy_loss -----------------------------------------------------------------------------
// Mean over the rows of  -sum_i b[i] ln(softmax(a)[i]).
//
//   a        logits, b: probabilities; same shape, F32, F16 or BF16, contiguous
//   returns  F32 [1]; 0 without rows
struct gcuda_cross_entropy_args { // also of its derivative
    struct gcuda_array logits, labels, grad, y; // grad: data is NULL for the loss itself
};
GCUDA_API struct gcuda_tensor * gcuda_cross_entropy_loss(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);

// >>op:cross_entropy_loss_back ------------------------------------------------------------------------
// Derivative by the logits:  y = (softmax(b) - c) a[0] / rows, with a the gradient of the loss, F32 [1]; b logits, c
// labels, as above. Returns type and shape of b.
GCUDA_API struct gcuda_tensor * gcuda_cross_entropy_loss_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c);

// >>op:opt_step_adamw ---------------------------------------------------------------------------------
// One step of AdamW, Loshchilov & Hutter 2017, arXiv:1711.05101. Changes a, m and v where they are:
//   m = beta1 m + (1 - beta1) g      v = beta2 v + (1 - beta2) g^2
//   a = a (1 - alpha wd) - alpha (m beta1h) / (sqrt(v beta2h) + eps)
//
//   a        parameters (gcuda_set_param), F32, F16 or BF16; grad the same shape; m, v F32, zero before step 1; all contiguous
//   adamw_params  F32 [7]: alpha, beta1, beta2, eps, wd, beta1h = 1/(1 - beta1^t), beta2h = 1/(1 - beta2^t) at step t >= 1
//   returns  a view of a
struct gcuda_opt_step_args { // also of opt_step_sgd, which has no m and v
    struct gcuda_array a, grad, m, v, params;
};
GCUDA_API struct gcuda_tensor * gcuda_opt_step_adamw(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * grad, struct gcuda_tensor * m, struct gcuda_tensor * v, struct gcuda_tensor * adamw_params);

// >>op:opt_step_sgd -----------------------------------------------------------------------------------
// One step down the gradient, in place:  a = a (1 - alpha wd) - alpha grad. sgd_params: F32 [2], alpha and wd.
GCUDA_API struct gcuda_tensor * gcuda_opt_step_sgd(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * grad, struct gcuda_tensor * sgd_params);

// ---------------- end of ops-b ----------------

// ---------------- mulmat: matrix products ----------------

// >>op:mul_mat ----------------------------------------------------------------------------------------
// Matrix product: the rows of a with the rows of b, y[m, n] = sum over k of a[k, m] * b[k, n]. Both have the summed
// dimension first, as weights and activations lie in memory; matrices of dimensions 2 and 3 of b share those of a.
//
//   a        [K, M, A2, A3]  F32, F16, BF16 or a quantized weight type; rows packed, other strides free
//   b        [K, N, B2, B3]  F32, F16, BF16, or blocks of the kind a was made for (Q8_0, Q8_1, Q8_K; see
//            gcuda_mul_mat_partner); B2 a multiple of A2, B3 of A3; matrix [i2, i3] meets a[i2 * A2 / B2, i3 * A3 / B3]
//   returns  [M, N, B2, B3]  F32
//   accuracy float weights: products and sums in F32. Quantized weights: activations are rounded to 8 bits with one
//            F32 scale per 32 values (about 1.5e-5 relative squared error), except where the CPU multiplies in F32
//   fails    NULL: K differs, sizes do not divide, a type is refused, rows of a or b are not packed
GCUDA_API struct gcuda_tensor * gcuda_mul_mat(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);

// GCUDA_PREC_F32 asks for sums in F32 where a backend would use less; the CPU always does. NULL is ignored.
GCUDA_API void gcuda_mul_mat_set_prec(struct gcuda_tensor * node, enum gcuda_prec prec);

// The block type that b may have besides floats when a has this type; GCUDA_TYPE_COUNT when there is none.
GCUDA_API enum gcuda_type gcuda_mul_mat_partner(enum gcuda_type a);

struct gcuda_mul_mat_args {
    struct gcuda_array a, b, y;
    enum gcuda_prec prec;
};

// >>op:mul_mat_id -------------------------------------------------------------------------------------
// Matrix products with chosen experts: y[m, u, t] = sum over k of as[k, m, ids[u, t]] * b[k, u mod nb, t].
//
//   as       [K, M, E]   one matrix per expert; types as a of gcuda_mul_mat
//   b        [K, nb, T]  activations of T tokens: one for all experts of a token (nb = 1), or one for each (nb = U)
//   ids      [U, T]      I32, rows packed; an expert may appear more than once
//   returns  [M, U, T]   F32; a row whose id is outside 0..E-1 is zero, and the graph reports it
//   fails    NULL: shapes or types do not fit, U is not a multiple of nb
GCUDA_API struct gcuda_tensor * gcuda_mul_mat_id(struct gcuda_context * ctx, struct gcuda_tensor * as,
                                                 struct gcuda_tensor * b, struct gcuda_tensor * ids);

struct gcuda_mul_mat_id_args {
    struct gcuda_array as, b, ids, y;
};

// >>op:out_prod ---------------------------------------------------------------------------------------
// Sum of outer products: y[i, j] = sum over t of a[i, t] * b[j, t]. The gradient of a matrix product's operands.
//
//   a        [m, k, A2, A3]  F32, F16, BF16 with any strides, or a quantized weight type with packed rows
//   b        [n, k, B2, B3]  F32, F16 or BF16, any strides; broadcasting as in gcuda_mul_mat
//   returns  [m, n, B2, B3]  F32
//   fails    NULL: k differs, sizes do not divide, a type is refused
GCUDA_API struct gcuda_tensor * gcuda_out_prod(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);

struct gcuda_out_prod_args {
    struct gcuda_array a, b, y;
};

// ---------------- end of mulmat ----------------

// ---------------- ops-c: attention, convolution, pooling, resampling, recurrent ----------------

// Types: where F32 data is named, F16 and BF16 are taken as well unless an entry says F32 only. Sums are in F32 or wider.

// >>op:flash_attn_ext ---------------------------------------------------------------------------------
// Attention in one pass, without the matrix of weights (Dao et al. 2022, arXiv:2205.14135). For token n, head h:
//     x[j]  = scale * sum_d q[d, n, h] * k[d, j, h / (H / Hk)]        then, with a softcap c:  x[j] = c * tanh(x[j] / c)
//     x[j] += slope(h) * mask[j, n, h mod m2]                         slope: ALiBi (arXiv:2108.12409), 1 without max_bias
//     y[:, h, n] = sum_j softmax(x)[j] * v[:, j, h / (H / Hv)]
//
//   q        [DK, N, H, S]   F32; H heads, S sequences; any strides but the first
//   k, v     [DK, KV, Hk, S], [DV, KV, Hv, S]  any type with a float form, also two different ones; H divisible by Hk and
//            Hv; any strides but the first; v may lie inside k
//   mask     NULL, or [KV, >= N, m2, m3]  F16, BF16 or F32, contiguous; H divisible by m2, S by m3. -inf: position j is
//            not attended to, and its k and v are not read
//   max_bias      ALiBi's largest slope exponent, 0: none; > 0 needs a mask
//   logit_softcap 0: none
//   returns  [DV, H, N, S]  F32, contiguous: heads before tokens. A token that may attend to nothing gets zeros
//   fails    NULL, and ctx keeps the error: shapes that do not match, a type without float form, max_bias without mask
struct gcuda_flash_attn_ext_args {
    struct gcuda_array q, k, v, mask, sinks, y; // mask.data, sinks.data NULL: absent
    float scale, max_bias, logit_softcap;
    enum gcuda_prec prec;
};
GCUDA_API struct gcuda_tensor * gcuda_flash_attn_ext(struct gcuda_context * ctx, struct gcuda_tensor * q, struct gcuda_tensor * k, struct gcuda_tensor * v, struct gcuda_tensor * mask, float scale, float max_bias, float logit_softcap);
// F32: products may not be accumulated in F16, on any backend.
GCUDA_API gcuda_status gcuda_flash_attn_ext_set_prec(struct gcuda_tensor * a, enum gcuda_prec prec);
GCUDA_API enum gcuda_prec gcuda_flash_attn_ext_get_prec(const struct gcuda_tensor * a);
// A logit per head that takes part in the softmax and has no value. sinks [H] F32; NULL takes them away again.
// Fails, and changes nothing: a is no flash_attn_ext, another type, fewer or more than H.
GCUDA_API gcuda_status gcuda_flash_attn_ext_add_sinks(struct gcuda_tensor * a, struct gcuda_tensor * sinks);

// Convolutions do not flip the kernel; what lies outside of the image is zero. Index 0 of stride s, padding p (on either
// side) and dilation d is the width, 1 the height, 2 the depth:
//     OW = (W + 2 * p0 - d0 * (KW - 1) - 1) / s0 + 1          at least 1, or the operation fails
struct gcuda_conv_args { // im2col, im2col_back, conv_2d, conv_2d_dw; one-dimensional ones as images of height 1
    struct gcuda_array kernel;
    struct gcuda_array x; // the image; of im2col_back the gradient of the columns
    struct gcuda_array y;
    int32_t s0, s1, p0, p1, d0, d1;
};

// >>op:im2col -----------------------------------------------------------------------------------------
// Patches of an image as rows, so that a convolution becomes a matrix product:
//     y[(ic * KH + kh) * KW + kw, ow, oh, n] = b[ow * s0 + kw * d0 - p0, oh * s1 + kh * d1 - p1, ic, n]
//
//   a        the kernel, of any type: only its shape counts. 2-D [KW, KH, IC, OC]; 1-D [KW, IC, OC]
//   b        2-D [W, H, IC, N]; 1-D [W, IC, N]  F32; any strides
//   dst_type F32, F16 or BF16
//   returns  2-D [IC*KH*KW, OW, OH, N]; 1-D [IC*KW, OW, N]  dst_type, contiguous
//   fails    NULL, and ctx keeps the error: channels differ, no output, strides or dilations < 1, paddings < 0
GCUDA_API struct gcuda_tensor * gcuda_im2col(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int s0, int s1, int p0, int p1, int d0, int d1, bool is_2D, enum gcuda_type dst_type);

// >>op:im2col_back ------------------------------------------------------------------------------------
// Gradient of im2col: every element of the image collects the columns it was copied to.
//   a        gradient of the im2col result, F32; any strides
//   b        the kernel, only its shape counts
//   ne       shape of the image
//   returns  [ne0, ne1, ne2, ne3]  F32, contiguous
GCUDA_API struct gcuda_tensor * gcuda_im2col_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, const int64_t * ne, int s0, int s1, int p0, int p1, int d0, int d1, bool is_2D);

// >>op:im2col_3d --------------------------------------------------------------------------------------
// Patches of a volume as rows:
//     y[((ic * KD + kd) * KH + kh) * KW + kw, ow, oh, n * OD + od] = b[x, y, z, n * IC + ic],   x = ow * s0 + kw * d0 - p0 ...
//
//   a        the kernel [KW, KH, KD, OC*IC]: only its shape counts
//   b        [W, H, D, N*IC]  F32; any strides
//   IC       input channels, a divisor of both last extents
//   returns  [IC*KD*KH*KW, OW, OH, OD*N]  dst_type (F32, F16 or BF16), contiguous
struct gcuda_im2col_3d_args {
    struct gcuda_array kernel, x, y;
    int64_t channels; // IC
    int32_t s[3], p[3], d[3];
};
GCUDA_API struct gcuda_tensor * gcuda_im2col_3d(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int64_t IC, int s0, int s1, int s2, int p0, int p1, int p2, int d0, int d1, int d2, enum gcuda_type dst_type);

// >>op:conv_2d ----------------------------------------------------------------------------------------
// Convolution without a patch matrix in memory:
//     y[ow, oh, oc, n] = sum_{ic, kh, kw} a[kw, kh, ic, oc] * b[ow * s0 + kw * d0 - p0, oh * s1 + kh * d1 - p1, ic, n]
//
//   a        [KW, KH, IC, OC]  F32, contiguous
//   b        [W, H, IC, N]     F32; any strides
//   returns  [OW, OH, OC, N]   type of b, contiguous
GCUDA_API struct gcuda_tensor * gcuda_conv_2d_direct(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int s0, int s1, int p0, int p1, int d0, int d1);

// The same, and its relatives, through im2col and mul_mat:
//   conv_2d          a [KW, KH, IC, OC], b [W, H, IC, N]                    -> [OW, OH, OC, N]; patches have the type of a
//   conv_2d_sk_p0    stride = kernel size, no padding (patch embedding)
//   conv_2d_s1_ph    stride 1, padding half the kernel
//   conv_2d_dw       a [KW, KH, 1, C], b [W, H, C, N], one kernel a channel -> [OW, OH, C, N]
//   conv_1d          a [K, IC, OC], b [L, IC, N]                            -> [OW, OC, N]; patches in F16
//   conv_1d_ph       padding K / 2
//   conv_1d_dw       a [K, 1, C], b [L, C, 1]                               -> [OW, C, 1]; patches in F16
//   conv_1d_dw_ph    padding K / 2
//   conv_3d          a [KW, KH, KD, IC*OC], b [W, H, D, IC*N]               -> [OW, OH, OD, OC*N]
GCUDA_API struct gcuda_tensor * gcuda_conv_1d(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int s0, int p0, int d0);
GCUDA_API struct gcuda_tensor * gcuda_conv_1d_ph(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int s, int d);
GCUDA_API struct gcuda_tensor * gcuda_conv_1d_dw(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int s0, int p0, int d0);
GCUDA_API struct gcuda_tensor * gcuda_conv_1d_dw_ph(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int s0, int d0);
GCUDA_API struct gcuda_tensor * gcuda_conv_2d(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int s0, int s1, int p0, int p1, int d0, int d1);
GCUDA_API struct gcuda_tensor * gcuda_conv_2d_sk_p0(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);
GCUDA_API struct gcuda_tensor * gcuda_conv_2d_s1_ph(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);
GCUDA_API struct gcuda_tensor * gcuda_conv_2d_dw(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int s0, int s1, int p0, int p1, int d0, int d1);
GCUDA_API struct gcuda_tensor * gcuda_conv_3d(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int64_t IC, int s0, int s1, int s2, int p0, int p1, int p2, int d0, int d1, int d2);

// >>op:conv_2d_dw -------------------------------------------------------------------------------------
// Depthwise convolution, every channel with its own kernel:
//     y[ow, oh, c, n] = sum_{kh, kw} a[kw, kh, 0, c] * b[ow * s0 + kw * d0 - p0, oh * s1 + kh * d1 - p1, c, n]
//
//   a        [KW, KH, 1, C]  F32; any strides
//   b        [W, H, C, N]    F32; contiguous, or channels innermost in memory (C, W, H, N)
//   returns  [OW, OH, C, N]  type of b, in the memory order of b
GCUDA_API struct gcuda_tensor * gcuda_conv_2d_dw_direct(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int stride0, int stride1, int pad0, int pad1, int dilation0, int dilation1);

// >>op:conv_transpose_1d ------------------------------------------------------------------------------
// Transposed convolution: y[o, oc] = sum over ic and all l, k with l * s0 + k == o of a[k, oc, ic] * b[l, ic].
//   a        [K, OC, IC]  F32, contiguous
//   b        [L, IC]      F32, contiguous
//   p0, d0   must be 0 and 1
//   returns  [(L - 1) * s0 + K, OC]  F32, contiguous
struct gcuda_conv_transpose_args { // the one-dimensional one as an image of height 1
    struct gcuda_array kernel, x, y;
    int32_t stride;
};
GCUDA_API struct gcuda_tensor * gcuda_conv_transpose_1d(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int s0, int p0, int d0);

// >>op:conv_transpose_2d ------------------------------------------------------------------------------
// y[x, y, oc, n] = sum over ic and all positions with w * stride + kw == x, h * stride + kh == y of
//                  a[kw, kh, oc, ic] * b[w, h, ic, n]
//   a        [KW, KH, OC, IC]  F16, BF16 or F32, contiguous
//   b        [W, H, IC, N]     F32, contiguous
//   returns  [(W - 1) * stride + KW, (H - 1) * stride + KH, OC, N]  F32, contiguous
GCUDA_API struct gcuda_tensor * gcuda_conv_transpose_2d_p0(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int stride);

// >>op:pool_1d ----------------------------------------------------------------------------------------
// Largest value or mean of windows along rows. The mean divides by k0 also where padding is counted; a window with
// nothing but padding gives -FLT_MAX or 0.
//   a        F32; any strides
//   returns  [(ne0 + 2 * p0 - k0) / s0 + 1, ne1, ne2, ne3]  F32, contiguous
//   fails    NULL, and ctx keeps the error: k or s < 1, p negative, not finite or >= 2^30, no output
enum gcuda_op_pool { GCUDA_OP_POOL_MAX = 0, GCUDA_OP_POOL_AVG = 1, GCUDA_OP_POOL_COUNT };
struct gcuda_pool_args { // pool_1d: k1, s1 are 1, p1 is 0
    struct gcuda_array x, y;
    struct gcuda_array dy; // pool_2d_back only: gradient of the pooled image
    enum gcuda_op_pool op;
    int32_t k0, k1, s0, s1, p0, p1;
};
GCUDA_API struct gcuda_tensor * gcuda_pool_1d(struct gcuda_context * ctx, struct gcuda_tensor * a, enum gcuda_op_pool op, int k0, int s0, int p0);

// >>op:pool_2d ----------------------------------------------------------------------------------------
// The same for windows of k0 x k1 in dimensions 0 and 1. Output extents are computed with p0, p1 as given, positions with
// their integer parts.
GCUDA_API struct gcuda_tensor * gcuda_pool_2d(struct gcuda_context * ctx, struct gcuda_tensor * a, enum gcuda_op_pool op, int k0, int k1, int s0, int s1, float p0, float p1);

// >>op:pool_2d_back -----------------------------------------------------------------------------------
// Gradient of pool_2d with respect to its image. Of several equal largest values the first in the window gets it.
//   a        gradient of the pooled image, F32; any strides
//   af       the image, F32; any strides
//   returns  shape of af, F32, contiguous
GCUDA_API struct gcuda_tensor * gcuda_pool_2d_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * af, enum gcuda_op_pool op, int k0, int k1, int s0, int s1, float p0, float p1);

// >>op:upscale ----------------------------------------------------------------------------------------
// Resampling of dimensions 0 and 1 to any extents, larger or smaller; dimensions 2 and 3 repeat or drop whole planes.
// Pixel centres lie at i + 0.5; with ALIGN_CORNERS the first and the last pixel of both grids coincide instead.
//   NEAREST   y[i] = a[trunc(i / f)], f = extent of y / extent of a
//   BILINEAR  the four neighbours; with ANTIALIAS all within the reach of a triangle as wide as the shrinking
//   BICUBIC   sixteen neighbours, Keys 1981 with A = -0.75
//
//   a        F32; any strides
//   returns  [ne0, ne1, ne2, ne3]  type of a, contiguous; upscale: dimensions 0 and 1 times scale_factor
//   fails    NULL, and ctx keeps the error: unknown mode, ANTIALIAS without BILINEAR, factor < 2, extents from nothing
enum gcuda_scale_mode { GCUDA_SCALE_MODE_NEAREST = 0, GCUDA_SCALE_MODE_BILINEAR = 1, GCUDA_SCALE_MODE_BICUBIC = 2, GCUDA_SCALE_MODE_COUNT };
enum gcuda_scale_flag { GCUDA_SCALE_FLAG_ALIGN_CORNERS = 0x100, GCUDA_SCALE_FLAG_ANTIALIAS = 0x200 };
struct gcuda_upscale_args {
    struct gcuda_array x, y;
    enum gcuda_scale_mode mode;
    bool align_corners, antialias;
};
GCUDA_API struct gcuda_tensor * gcuda_upscale(struct gcuda_context * ctx, struct gcuda_tensor * a, int scale_factor, enum gcuda_scale_mode mode);
GCUDA_API struct gcuda_tensor * gcuda_upscale_ext(struct gcuda_context * ctx, struct gcuda_tensor * a, int ne0, int ne1, int ne2, int ne3, enum gcuda_scale_mode mode);
GCUDA_API struct gcuda_tensor * gcuda_interpolate(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3, uint32_t mode); // mode | flags

// >>op:ssm_conv ---------------------------------------------------------------------------------------
// Short causal convolution of every channel:  y[i, t, s] = sum_{k < K} sx[t + k, i, s] * c[k, i].
//   sx       [K - 1 + T, D, S]  F32: the K - 1 inputs before, then T new ones; nb[1] = ne[0] elements
//   c        [K, D]  F32, contiguous
//   returns  [D, T, S]  F32, contiguous
struct gcuda_ssm_conv_args {
    struct gcuda_array x, c, y;
};
GCUDA_API struct gcuda_tensor * gcuda_ssm_conv(struct gcuda_context * ctx, struct gcuda_tensor * sx, struct gcuda_tensor * c);

// >>op:ssm_scan ---------------------------------------------------------------------------------------
// Selective scan: Mamba (Gu & Dao 2023, arXiv:2312.00752) and Mamba-2 (2024, arXiv:2405.21060). For sequence q, head h of
// group g, channel p, with d = softplus(dt[h, t, q]):
//     st[n] = st[n] * exp(d * A[n, h]) + B[n, g, t, q] * x[p, h, t, q] * d;      y[p, h, t, q] = sum_n st[n] * C[n, g, t, q]
//
//   s        [N, P, H, >= S]  F32, contiguous: the pool of states, not changed
//   x        [P, H, T, S]  F32; rows of heads packed, nb[2] and nb[3] free
//   dt       [H, T, S]     F32, contiguous
//   A        [1, H] (Mamba-2) or [N, H] (Mamba)  F32, contiguous
//   B, C     [N, G, T, S]  F32; H divisible by G; rows of groups packed, nb[2] and nb[3] free
//   ids      [S]  I32: where in the pool the state of a sequence is; out of range: zeros, and computing returns
//            GCUDA_STATUS_INVALID_DATA
//   returns  F32, one row: y [P, H, T, S], then the final states [N, P, H, S] in the order of the sequences
struct gcuda_ssm_scan_args {
    struct gcuda_array s, x, dt, a, b, c, ids, y;
};
GCUDA_API struct gcuda_tensor * gcuda_ssm_scan(struct gcuda_context * ctx, struct gcuda_tensor * s, struct gcuda_tensor * x, struct gcuda_tensor * dt, struct gcuda_tensor * A, struct gcuda_tensor * B, struct gcuda_tensor * C, struct gcuda_tensor * ids);

// The three recurrences below keep a matrix of Z x Z numbers per head and sequence.
//   inputs   [Z, H, T]  F32, contiguous; the T tokens are those of S sequences of equal length, one after the other
//   state    Z*Z*H*S elements with ne[1] = S, F32, contiguous
//   returns  [Z*H, T + Z*S]  F32: T rows of results, then the final states in the layout of the input state

// >>op:rwkv_wkv6 --------------------------------------------------------------------------------------
// RWKV-6 (Peng et al. 2024, arXiv:2404.05892). W[i][j]: i key, j value (adjacent in memory). tf is [Z, H].
//     y[j] = sum_i r[i] * (tf[i] * k[i] * v[j] + W[i][j]);      W[i][j] = W[i][j] * td[i] + k[i] * v[j]
struct gcuda_rwkv_wkv6_args {
    struct gcuda_array k, v, r, tf, td, state, y;
};
GCUDA_API struct gcuda_tensor * gcuda_rwkv_wkv6(struct gcuda_context * ctx, struct gcuda_tensor * k, struct gcuda_tensor * v, struct gcuda_tensor * r, struct gcuda_tensor * tf, struct gcuda_tensor * td, struct gcuda_tensor * state);

// >>op:gated_linear_attn ------------------------------------------------------------------------------
// Gated linear attention (Yang et al. 2023, arXiv:2312.06635). W[i][j]: i key, j value (adjacent in memory).
//     W[i][j] = W[i][j] * g[i] + k[i] * v[j];      y[j] = scale * sum_i q[i] * W[i][j]
struct gcuda_gated_linear_attn_args {
    struct gcuda_array k, v, q, g, state, y;
    float scale;
};
GCUDA_API struct gcuda_tensor * gcuda_gated_linear_attn(struct gcuda_context * ctx, struct gcuda_tensor * k, struct gcuda_tensor * v, struct gcuda_tensor * q, struct gcuda_tensor * g, struct gcuda_tensor * state, float scale);

// >>op:rwkv_wkv7 --------------------------------------------------------------------------------------
// RWKV-7 (Peng et al. 2025, arXiv:2503.14456). W[i][j]: i value, j key (adjacent in memory): the other way round.
//     s[i] = sum_j a[j] * W[i][j];   W[i][j] = W[i][j] * w[j] + v[i] * k[j] + s[i] * b[j];   y[i] = sum_j W[i][j] * r[j]
struct gcuda_rwkv_wkv7_args {
    struct gcuda_array r, w, k, v, a, b, state, y;
};
GCUDA_API struct gcuda_tensor * gcuda_rwkv_wkv7(struct gcuda_context * ctx, struct gcuda_tensor * r, struct gcuda_tensor * w, struct gcuda_tensor * k, struct gcuda_tensor * v, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * state);

// >>op:solve_tri --------------------------------------------------------------------------------------
// Solves A X = B by forward substitution, A lower triangular with a diagonal of its own (what is above is not read):
//     X[i][c] = (B[i][c] - sum_{t < i} A[i][t] * X[t][c]) / A[i][i]            row i, column c are a[t, i] and b[c, i]
//
//   a        [n, n, ne2, ne3]  F32; any strides but the first
//   b        [k, n, ne2, ne3]  F32; any strides but the first
//   left, lower, uni  must be true, true, false
//   returns  [k, n, ne2, ne3]  F32, contiguous; infinite or NaN where the diagonal is 0
struct gcuda_solve_tri_args {
    struct gcuda_array a, b, y;
};
GCUDA_API struct gcuda_tensor * gcuda_solve_tri(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, bool left, bool lower, bool uni);

// ---------------- end of ops-c ----------------

// =====================================================================================================
// >>graph   graphs: building, lookup, printing
// =====================================================================================================

// Nodes in dependency order. Made in a context and living as long as it. Plain data: read it, change it only
// through the functions.
struct gcuda_cgraph {
    int size;    // capacity of nodes and of leafs
    int n_nodes; // tensors with an operation, and trainable parameters
    int n_leafs; // constants and inputs
    struct gcuda_tensor ** nodes;
    struct gcuda_tensor ** leafs;
    struct gcuda_tensor ** grads;     // per hash slot: gradient of the tensor; NULL without gradients
    struct gcuda_tensor ** grad_accs; // per hash slot: accumulator of the gradient
    int32_t * use_counts;             // per hash slot: references from sources of the whole graph
    struct gcuda_tensor ** hash_keys; // open addressing; NULL: free slot
    size_t hash_size;                 // a power of two
    struct gcuda_context * ctx;       // where it lives; errors kept there stop building
};

GCUDA_API struct gcuda_cgraph * gcuda_new_graph(struct gcuda_context * ctx); // GCUDA_DEFAULT_GRAPH_SIZE, no gradients
GCUDA_API struct gcuda_cgraph * gcuda_new_graph_custom(struct gcuda_context * ctx, size_t size, bool grads);
GCUDA_API size_t gcuda_graph_overhead(void); // bytes of a context that a default graph takes
GCUDA_API size_t gcuda_graph_overhead_custom(size_t size, bool grads); // 0 if too large

// Appends everything that tensor depends on and is not there yet, sources first, then tensor. Fails when the
// context holds an error (with the context's first message), when tensor is NULL, or when the graph is full; the
// graph is unchanged then.
GCUDA_API gcuda_status gcuda_build_forward_expand(struct gcuda_cgraph * graph, struct gcuda_tensor * tensor);
GCUDA_API gcuda_status gcuda_graph_add_node(struct gcuda_cgraph * graph, struct gcuda_tensor * tensor); // as is, last

GCUDA_API struct gcuda_cgraph gcuda_graph_view(struct gcuda_cgraph * graph, int i0, int i1); // nodes [i0, i1), clamped
GCUDA_API struct gcuda_cgraph * gcuda_graph_dup(struct gcuda_context * ctx, struct gcuda_cgraph * graph, bool force_grads);
GCUDA_API gcuda_status gcuda_graph_cpy(struct gcuda_cgraph * src, struct gcuda_cgraph * dst);
GCUDA_API void gcuda_graph_clear(struct gcuda_cgraph * graph);
GCUDA_API int gcuda_graph_size(const struct gcuda_cgraph * graph);
GCUDA_API int gcuda_graph_n_nodes(const struct gcuda_cgraph * graph);
GCUDA_API struct gcuda_tensor ** gcuda_graph_nodes(struct gcuda_cgraph * graph);
// i < 0 counts from the end; NULL when out of range.
GCUDA_API struct gcuda_tensor * gcuda_graph_node(const struct gcuda_cgraph * graph, int i);
GCUDA_API struct gcuda_tensor * gcuda_graph_get_tensor(const struct gcuda_cgraph * graph, const char * name); // NULL if none
GCUDA_API int gcuda_graph_use_count(const struct gcuda_cgraph * graph, const struct gcuda_tensor * tensor);

// A readable dump, line by line, to the log callback (level INFO), or into memory: gcuda_graph_to_text returns the
// bytes needed without the terminator, and writes at most size bytes with it (as snprintf does).
GCUDA_API void gcuda_graph_print(const struct gcuda_cgraph * graph);
GCUDA_API size_t gcuda_graph_to_text(const struct gcuda_cgraph * graph, char * text, size_t size);
// Graphviz source; the second form writes a file.
GCUDA_API size_t gcuda_graph_to_dot(const struct gcuda_cgraph * graph, char * text, size_t size);
GCUDA_API gcuda_status gcuda_graph_dump_dot(const struct gcuda_cgraph * graph, const char * filename);

// =====================================================================================================
// >>autodiff   backward graphs, gradients
// =====================================================================================================

// =====================================================================================================
// >>alloc   tensor allocator, graph allocator
// =====================================================================================================

struct gcuda_backend_buffer_type;
struct gcuda_backend_device;
struct gcuda_backend_reg;
struct gcuda_backend;
struct gcuda_backend_event;
typedef struct gcuda_backend_buffer_type * gcuda_backend_buffer_type_t;
typedef struct gcuda_backend_buffer * gcuda_backend_buffer_t;
typedef struct gcuda_backend_device * gcuda_backend_dev_t;
typedef struct gcuda_backend_reg * gcuda_backend_reg_t;
typedef struct gcuda_backend * gcuda_backend_t;
typedef struct gcuda_backend_event * gcuda_backend_event_t;
typedef void * gcuda_backend_graph_plan_t;

// Hands out places in a buffer one after another. A plain value; the buffer stays the caller's.
struct gcuda_tallocr {
    gcuda_backend_buffer_t buffer;
    void * base;
    size_t alignment;
    size_t offset; // of the next free byte
};
GCUDA_API struct gcuda_tallocr gcuda_tallocr_new(gcuda_backend_buffer_t buffer);
GCUDA_API gcuda_status gcuda_tallocr_alloc(struct gcuda_tallocr * talloc, struct gcuda_tensor * tensor); // fails when the buffer is full

// Places the tensors of a graph so that those alive at the same time never overlap, reusing memory as nodes die.
// Tensors that have data already, and views, are left alone. INPUT tensors are placed first, OUTPUT tensors are never
// reused. Not thread-safe. After a failure the allocator can be used again or freed.
struct gcuda_gallocr;
typedef struct gcuda_gallocr * gcuda_gallocr_t;
GCUDA_API gcuda_gallocr_t gcuda_gallocr_new(gcuda_backend_buffer_type_t buft); // NULL on failure
GCUDA_API gcuda_gallocr_t gcuda_gallocr_new_n(gcuda_backend_buffer_type_t * bufts, int n_bufs); // equal types share one buffer
GCUDA_API void gcuda_gallocr_free(gcuda_gallocr_t galloc); // and its buffers; NULL is allowed
// Measures the graph and makes the buffers large enough. The ids (NULL: all 0) choose the buffer type of each node and
// leaf. Growing a buffer moves it: whatever was placed there before is gone.
GCUDA_API gcuda_status gcuda_gallocr_reserve(gcuda_gallocr_t galloc, struct gcuda_cgraph * graph);
GCUDA_API gcuda_status gcuda_gallocr_reserve_n(gcuda_gallocr_t galloc, struct gcuda_cgraph * graph, const int * node_buffer_ids, const int * leaf_buffer_ids);
// A dry run: bytes that each of the n_bufs buffers would need (0 for one that shares an earlier one). Allocates no buffer.
GCUDA_API gcuda_status gcuda_gallocr_reserve_n_size(gcuda_gallocr_t galloc, struct gcuda_cgraph * graph, const int * node_buffer_ids, const int * leaf_buffer_ids, size_t * sizes);
// Gives every tensor its place. Allocates nothing when the graph has the structure of the reserved one and no tensor
// is larger; else it reserves by itself with one buffer, and fails with several (reserve_n knows the ids).
GCUDA_API gcuda_status gcuda_gallocr_alloc_graph(gcuda_gallocr_t galloc, struct gcuda_cgraph * graph);
GCUDA_API size_t gcuda_gallocr_get_buffer_size(gcuda_gallocr_t galloc, int buffer_id); // 0 for one that shares an earlier one

// All tensors of a context into new buffers of one type. Never NULL on success: an empty context gives an empty
// buffer. On failure every tensor is as before.
GCUDA_API gcuda_backend_buffer_t gcuda_backend_alloc_ctx_tensors_from_buft(struct gcuda_context * ctx, gcuda_backend_buffer_type_t buft);
GCUDA_API gcuda_backend_buffer_t gcuda_backend_alloc_ctx_tensors(struct gcuda_context * ctx, gcuda_backend_t backend);

// =====================================================================================================
// >>backend   buffers, devices, backends, registry: the vtables and their front functions
// =====================================================================================================
//
// A third-party backend fills in the five vtables below. Entries marked optional may be NULL. Functions return a
// status and call gcuda_set_last_error for the message. Objects are plain structs: embed them first in yours.

// Sets this thread's message, for backends outside this file. Returns status, so that `return` can stand before it.
GCUDA_API gcuda_status gcuda_set_last_error(gcuda_status status, const char * message);

enum gcuda_backend_buffer_usage {
    GCUDA_BACKEND_BUFFER_USAGE_ANY = 0,
    GCUDA_BACKEND_BUFFER_USAGE_WEIGHTS = 1,
    GCUDA_BACKEND_BUFFER_USAGE_COMPUTE = 2
};

struct gcuda_backend_buffer_type_i {
    const char * (*get_name)(gcuda_backend_buffer_type_t buft);
    gcuda_status (*alloc_buffer)(gcuda_backend_buffer_type_t buft, size_t size, gcuda_backend_buffer_t * buffer); // size 0 succeeds
    size_t (*get_alignment)(gcuda_backend_buffer_type_t buft); // a power of two
    size_t (*get_max_size)(gcuda_backend_buffer_type_t buft);  // optional; default SIZE_MAX
    size_t (*get_alloc_size)(gcuda_backend_buffer_type_t buft, const struct gcuda_tensor * tensor); // optional; default nbytes
    bool (*is_host)(gcuda_backend_buffer_type_t buft); // optional; default false
};
struct gcuda_backend_buffer_type {
    struct gcuda_backend_buffer_type_i iface;
    gcuda_backend_dev_t device;
    void * context;
};

struct gcuda_backend_buffer_i {
    void (*free_buffer)(gcuda_backend_buffer_t buffer); // optional; frees the context, not the struct
    void * (*get_base)(gcuda_backend_buffer_t buffer);  // NULL only for size 0
    gcuda_status (*init_tensor)(gcuda_backend_buffer_t buffer, struct gcuda_tensor * tensor); // optional
    gcuda_status (*memset_tensor)(gcuda_backend_buffer_t buffer, struct gcuda_tensor * tensor, uint8_t value, size_t offset, size_t size);
    gcuda_status (*set_tensor)(gcuda_backend_buffer_t buffer, struct gcuda_tensor * tensor, const void * data, size_t offset, size_t size);
    gcuda_status (*get_tensor)(gcuda_backend_buffer_t buffer, const struct gcuda_tensor * tensor, void * data, size_t offset, size_t size);
    // optional; GCUDA_STATUS_UNSUPPORTED: the caller stages through host memory
    gcuda_status (*cpy_tensor)(gcuda_backend_buffer_t buffer, const struct gcuda_tensor * src, struct gcuda_tensor * dst);
    gcuda_status (*clear)(gcuda_backend_buffer_t buffer, uint8_t value);
    gcuda_status (*reset)(gcuda_backend_buffer_t buffer); // optional; drops what init_tensor made
};
struct gcuda_backend_buffer {
    struct gcuda_backend_buffer_i iface;
    gcuda_backend_buffer_type_t buft;
    void * context;
    size_t size;
    enum gcuda_backend_buffer_usage usage;
};

enum gcuda_backend_dev_type {
    GCUDA_BACKEND_DEVICE_TYPE_CPU = 0,
    GCUDA_BACKEND_DEVICE_TYPE_GPU = 1,
    GCUDA_BACKEND_DEVICE_TYPE_ACCEL = 2
};
struct gcuda_backend_dev_caps {
    bool async;
    bool host_buffer;
    bool buffer_from_host_ptr;
    bool events;
};
struct gcuda_backend_dev_props {
    const char * name;
    const char * description;
    size_t memory_free, memory_total; // bytes
    enum gcuda_backend_dev_type type;
    const char * device_id; // PCI id such as "0000:01:00.0", or NULL
    struct gcuda_backend_dev_caps caps;
};

struct gcuda_backend_device_i {
    const char * (*get_name)(gcuda_backend_dev_t dev);
    const char * (*get_description)(gcuda_backend_dev_t dev);
    gcuda_status (*get_memory)(gcuda_backend_dev_t dev, size_t * free, size_t * total);
    enum gcuda_backend_dev_type (*get_type)(gcuda_backend_dev_t dev);
    gcuda_status (*get_props)(gcuda_backend_dev_t dev, struct gcuda_backend_dev_props * props);
    gcuda_status (*init_backend)(gcuda_backend_dev_t dev, const char * params, gcuda_backend_t * backend);
    gcuda_backend_buffer_type_t (*get_buffer_type)(gcuda_backend_dev_t dev);
    gcuda_backend_buffer_type_t (*get_host_buffer_type)(gcuda_backend_dev_t dev); // optional
    gcuda_status (*buffer_from_host_ptr)(gcuda_backend_dev_t dev, void * ptr, size_t size, size_t max_tensor_size, gcuda_backend_buffer_t * buffer); // optional
    gcuda_status (*supports_op)(gcuda_backend_dev_t dev, const struct gcuda_tensor * op); // SUCCESS, or why not
    bool (*supports_buft)(gcuda_backend_dev_t dev, gcuda_backend_buffer_type_t buft);
    bool (*offload_op)(gcuda_backend_dev_t dev, const struct gcuda_tensor * op); // optional; default false
    gcuda_status (*event_new)(gcuda_backend_dev_t dev, gcuda_backend_event_t * event); // optional
    void (*event_free)(gcuda_backend_dev_t dev, gcuda_backend_event_t event);          // with event_new
    gcuda_status (*event_synchronize)(gcuda_backend_dev_t dev, gcuda_backend_event_t event); // with event_new
    gcuda_status (*event_query)(gcuda_backend_dev_t dev, gcuda_backend_event_t event, bool * done); // with event_new
};
struct gcuda_backend_device {
    struct gcuda_backend_device_i iface;
    gcuda_backend_reg_t reg;
    void * context;
};

struct gcuda_backend_event {
    gcuda_backend_dev_t device;
    void * context;
};

#define GCUDA_BACKEND_API_VERSION 1
struct gcuda_backend_reg_i {
    const char * (*get_name)(gcuda_backend_reg_t reg);
    size_t (*get_device_count)(gcuda_backend_reg_t reg);
    gcuda_backend_dev_t (*get_device)(gcuda_backend_reg_t reg, size_t index); // index is in range
    void * (*get_proc_address)(gcuda_backend_reg_t reg, const char * name);   // optional
};
struct gcuda_backend_reg {
    int api_version; // GCUDA_BACKEND_API_VERSION
    struct gcuda_backend_reg_i iface;
    void * context;
};

struct gcuda_backend_i {
    const char * (*get_name)(gcuda_backend_t backend);
    void (*free)(gcuda_backend_t backend); // frees the struct too
    // optional: async data access; default: synchronize, then the blocking form
    gcuda_status (*set_tensor_async)(gcuda_backend_t backend, struct gcuda_tensor * tensor, const void * data, size_t offset, size_t size);
    gcuda_status (*get_tensor_async)(gcuda_backend_t backend, const struct gcuda_tensor * tensor, void * data, size_t offset, size_t size);
    gcuda_status (*cpy_tensor_async)(gcuda_backend_t src, gcuda_backend_t dst, const struct gcuda_tensor * from, struct gcuda_tensor * to);
    gcuda_status (*synchronize)(gcuda_backend_t backend); // optional: absent when everything is synchronous
    // optional plans
    gcuda_status (*graph_plan_create)(gcuda_backend_t backend, const struct gcuda_cgraph * graph, gcuda_backend_graph_plan_t * plan);
    void (*graph_plan_free)(gcuda_backend_t backend, gcuda_backend_graph_plan_t plan);
    gcuda_status (*graph_plan_update)(gcuda_backend_t backend, gcuda_backend_graph_plan_t plan, const struct gcuda_cgraph * graph);
    gcuda_status (*graph_plan_compute)(gcuda_backend_t backend, gcuda_backend_graph_plan_t plan);
    gcuda_status (*graph_compute)(gcuda_backend_t backend, struct gcuda_cgraph * graph); // may return before the work is done
    gcuda_status (*event_record)(gcuda_backend_t backend, gcuda_backend_event_t event); // optional
    gcuda_status (*event_wait)(gcuda_backend_t backend, gcuda_backend_event_t event);   // optional
    gcuda_status (*graph_optimize)(gcuda_backend_t backend, struct gcuda_cgraph * graph); // optional; may reorder nodes
};
struct gcuda_backend {
    uint8_t guid[16]; // tells implementations apart
    struct gcuda_backend_i iface;
    gcuda_backend_dev_t device;
    void * context;
};

// ---- buffer types ----
GCUDA_API const char * gcuda_backend_buft_name(gcuda_backend_buffer_type_t buft);
GCUDA_API gcuda_backend_buffer_t gcuda_backend_buft_alloc_buffer(gcuda_backend_buffer_type_t buft, size_t size); // NULL on failure
GCUDA_API size_t gcuda_backend_buft_get_alignment(gcuda_backend_buffer_type_t buft);
GCUDA_API size_t gcuda_backend_buft_get_max_size(gcuda_backend_buffer_type_t buft);
GCUDA_API size_t gcuda_backend_buft_get_alloc_size(gcuda_backend_buffer_type_t buft, const struct gcuda_tensor * tensor);
GCUDA_API bool gcuda_backend_buft_is_host(gcuda_backend_buffer_type_t buft);
GCUDA_API gcuda_backend_dev_t gcuda_backend_buft_get_device(gcuda_backend_buffer_type_t buft);

// ---- buffers ----
// For backends: a buffer struct around their context.
GCUDA_API gcuda_backend_buffer_t gcuda_backend_buffer_init(gcuda_backend_buffer_type_t buft, const struct gcuda_backend_buffer_i * iface, void * context, size_t size);
GCUDA_API const char * gcuda_backend_buffer_name(gcuda_backend_buffer_t buffer);
GCUDA_API void gcuda_backend_buffer_free(gcuda_backend_buffer_t buffer); // NULL is allowed
GCUDA_API void * gcuda_backend_buffer_get_base(gcuda_backend_buffer_t buffer); // NULL for size 0 and for multi-buffers
GCUDA_API size_t gcuda_backend_buffer_get_size(gcuda_backend_buffer_t buffer);
GCUDA_API gcuda_status gcuda_backend_buffer_init_tensor(gcuda_backend_buffer_t buffer, struct gcuda_tensor * tensor);
GCUDA_API size_t gcuda_backend_buffer_get_alignment(gcuda_backend_buffer_t buffer);
GCUDA_API size_t gcuda_backend_buffer_get_max_size(gcuda_backend_buffer_t buffer);
GCUDA_API size_t gcuda_backend_buffer_get_alloc_size(gcuda_backend_buffer_t buffer, const struct gcuda_tensor * tensor);
GCUDA_API gcuda_status gcuda_backend_buffer_clear(gcuda_backend_buffer_t buffer, uint8_t value);
GCUDA_API bool gcuda_backend_buffer_is_host(gcuda_backend_buffer_t buffer);
GCUDA_API void gcuda_backend_buffer_set_usage(gcuda_backend_buffer_t buffer, enum gcuda_backend_buffer_usage usage);
GCUDA_API enum gcuda_backend_buffer_usage gcuda_backend_buffer_get_usage(gcuda_backend_buffer_t buffer);
GCUDA_API gcuda_backend_buffer_type_t gcuda_backend_buffer_get_type(gcuda_backend_buffer_t buffer);
GCUDA_API gcuda_status gcuda_backend_buffer_reset(gcuda_backend_buffer_t buffer);
// One buffer object over several; takes them over, also on failure (NULL: they are freed).
GCUDA_API gcuda_backend_buffer_t gcuda_backend_multi_buffer_alloc_buffer(gcuda_backend_buffer_t * buffers, size_t n_buffers);
GCUDA_API bool gcuda_backend_buffer_is_multi_buffer(gcuda_backend_buffer_t buffer);

// ---- tensors in buffers; offset and size in bytes inside the tensor, checked ----
GCUDA_API gcuda_status gcuda_backend_tensor_set(struct gcuda_tensor * tensor, const void * data, size_t offset, size_t size);
GCUDA_API gcuda_status gcuda_backend_tensor_get(const struct gcuda_tensor * tensor, void * data, size_t offset, size_t size);
GCUDA_API gcuda_status gcuda_backend_tensor_memset(struct gcuda_tensor * tensor, uint8_t value, size_t offset, size_t size);
GCUDA_API gcuda_status gcuda_backend_tensor_copy(const struct gcuda_tensor * src, struct gcuda_tensor * dst); // same layout
GCUDA_API gcuda_status gcuda_backend_tensor_set_async(gcuda_backend_t backend, struct gcuda_tensor * tensor, const void * data, size_t offset, size_t size);
GCUDA_API gcuda_status gcuda_backend_tensor_get_async(gcuda_backend_t backend, const struct gcuda_tensor * tensor, void * data, size_t offset, size_t size);
// After all queued work of both backends; the destination backend's queued work still comes before it.
GCUDA_API gcuda_status gcuda_backend_tensor_copy_async(gcuda_backend_t backend_src, gcuda_backend_t backend_dst, const struct gcuda_tensor * src, struct gcuda_tensor * dst);
// Place a tensor at an address inside a buffer; give a view its owner's place.
GCUDA_API gcuda_status gcuda_backend_tensor_alloc(gcuda_backend_buffer_t buffer, struct gcuda_tensor * tensor, void * addr);
GCUDA_API gcuda_status gcuda_backend_view_init(struct gcuda_tensor * tensor);

// ---- backends ----
GCUDA_API const uint8_t * gcuda_backend_guid(gcuda_backend_t backend); // 16 bytes; NULL for NULL
GCUDA_API const char * gcuda_backend_name(gcuda_backend_t backend);
GCUDA_API void gcuda_backend_free(gcuda_backend_t backend); // NULL is allowed
GCUDA_API gcuda_backend_buffer_type_t gcuda_backend_get_default_buffer_type(gcuda_backend_t backend);
GCUDA_API gcuda_backend_buffer_t gcuda_backend_alloc_buffer(gcuda_backend_t backend, size_t size);
GCUDA_API size_t gcuda_backend_get_alignment(gcuda_backend_t backend);
GCUDA_API size_t gcuda_backend_get_max_size(gcuda_backend_t backend);
GCUDA_API gcuda_status gcuda_backend_synchronize(gcuda_backend_t backend);
GCUDA_API gcuda_status gcuda_backend_graph_compute(gcuda_backend_t backend, struct gcuda_cgraph * graph); // waits for the result
GCUDA_API gcuda_status gcuda_backend_graph_compute_async(gcuda_backend_t backend, struct gcuda_cgraph * graph);
// A plan keeps its own node list; the tensors must outlive it. NULL on failure.
GCUDA_API gcuda_backend_graph_plan_t gcuda_backend_graph_plan_create(gcuda_backend_t backend, struct gcuda_cgraph * graph);
GCUDA_API void gcuda_backend_graph_plan_free(gcuda_backend_t backend, gcuda_backend_graph_plan_t plan);
GCUDA_API gcuda_status gcuda_backend_graph_plan_compute(gcuda_backend_t backend, gcuda_backend_graph_plan_t plan);
GCUDA_API bool gcuda_backend_supports_op(gcuda_backend_t backend, const struct gcuda_tensor * op);
GCUDA_API bool gcuda_backend_supports_buft(gcuda_backend_t backend, gcuda_backend_buffer_type_t buft);
GCUDA_API bool gcuda_backend_offload_op(gcuda_backend_t backend, const struct gcuda_tensor * op);
GCUDA_API gcuda_backend_dev_t gcuda_backend_get_device(gcuda_backend_t backend);

// ---- events ----
GCUDA_API gcuda_backend_event_t gcuda_backend_event_new(gcuda_backend_dev_t dev); // NULL where unsupported
GCUDA_API void gcuda_backend_event_free(gcuda_backend_event_t event);             // NULL is allowed
GCUDA_API gcuda_status gcuda_backend_event_record(gcuda_backend_event_t event, gcuda_backend_t backend);
GCUDA_API gcuda_status gcuda_backend_event_synchronize(gcuda_backend_event_t event);
GCUDA_API gcuda_status gcuda_backend_event_query(gcuda_backend_event_t event, bool * done);
GCUDA_API gcuda_status gcuda_backend_event_wait(gcuda_backend_t backend, gcuda_backend_event_t event);

// ---- devices ----
GCUDA_API const char * gcuda_backend_dev_name(gcuda_backend_dev_t dev);
GCUDA_API const char * gcuda_backend_dev_description(gcuda_backend_dev_t dev);
GCUDA_API gcuda_status gcuda_backend_dev_memory(gcuda_backend_dev_t dev, size_t * free, size_t * total); // bytes
GCUDA_API enum gcuda_backend_dev_type gcuda_backend_dev_type(gcuda_backend_dev_t dev);
GCUDA_API gcuda_status gcuda_backend_dev_get_props(gcuda_backend_dev_t dev, struct gcuda_backend_dev_props * props);
GCUDA_API gcuda_backend_reg_t gcuda_backend_dev_backend_reg(gcuda_backend_dev_t dev);
GCUDA_API gcuda_backend_t gcuda_backend_dev_init(gcuda_backend_dev_t dev, const char * params); // params may be NULL
GCUDA_API gcuda_backend_buffer_type_t gcuda_backend_dev_buffer_type(gcuda_backend_dev_t dev);
GCUDA_API gcuda_backend_buffer_type_t gcuda_backend_dev_host_buffer_type(gcuda_backend_dev_t dev); // NULL if none
GCUDA_API gcuda_backend_buffer_t gcuda_backend_dev_buffer_from_host_ptr(gcuda_backend_dev_t dev, void * ptr, size_t size, size_t max_tensor_size);
GCUDA_API bool gcuda_backend_dev_supports_op(gcuda_backend_dev_t dev, const struct gcuda_tensor * op); // false: gcuda_last_error says why
GCUDA_API bool gcuda_backend_dev_supports_buft(gcuda_backend_dev_t dev, gcuda_backend_buffer_type_t buft);
GCUDA_API bool gcuda_backend_dev_offload_op(gcuda_backend_dev_t dev, const struct gcuda_tensor * op);

// ---- registry ----
GCUDA_API const char * gcuda_backend_reg_name(gcuda_backend_reg_t reg);
GCUDA_API size_t gcuda_backend_reg_dev_count(gcuda_backend_reg_t reg);
GCUDA_API gcuda_backend_dev_t gcuda_backend_reg_dev_get(gcuda_backend_reg_t reg, size_t index); // NULL when out of range
GCUDA_API void * gcuda_backend_reg_get_proc_address(gcuda_backend_reg_t reg, const char * name);
GCUDA_API gcuda_status gcuda_backend_register(gcuda_backend_reg_t reg); // the caller keeps reg alive until gcuda_shutdown
GCUDA_API size_t gcuda_backend_reg_count(void);
GCUDA_API gcuda_backend_reg_t gcuda_backend_reg_get(size_t index);
GCUDA_API gcuda_backend_reg_t gcuda_backend_reg_by_name(const char * name);
GCUDA_API size_t gcuda_backend_dev_count(void);
GCUDA_API gcuda_backend_dev_t gcuda_backend_dev_get(size_t index);
GCUDA_API gcuda_backend_dev_t gcuda_backend_dev_by_name(const char * name);
GCUDA_API gcuda_backend_dev_t gcuda_backend_dev_by_type(enum gcuda_backend_dev_type type);
GCUDA_API gcuda_backend_t gcuda_backend_init_by_name(const char * name, const char * params);
GCUDA_API gcuda_backend_t gcuda_backend_init_by_type(enum gcuda_backend_dev_type type, const char * params);
GCUDA_API gcuda_backend_t gcuda_backend_init_best(void); // a GPU if there is one, else the CPU

// ---- copying a graph to another backend, comparing two backends ----
// The same nodes, in the same order, over copies of all tensors and their present data. Sources that are not nodes of
// the graph become constants. graph is NULL on failure. Free it with gcuda_backend_graph_copy_free.
struct gcuda_backend_graph_copied {
    gcuda_backend_buffer_t buffer;
    struct gcuda_context * ctx_allocated;
    struct gcuda_context * ctx_unallocated; // the views
    struct gcuda_cgraph * graph;
};
GCUDA_API struct gcuda_backend_graph_copied gcuda_backend_graph_copy(gcuda_backend_t backend, struct gcuda_cgraph * graph);
GCUDA_API void gcuda_backend_graph_copy_free(struct gcuda_backend_graph_copied copy);
// false stops the comparison.
typedef bool (*gcuda_backend_eval_callback)(int node_index, struct gcuda_tensor * t1, struct gcuda_tensor * t2, void * user_data);
// Computes node by node on both backends, each going on from its own results, and calls back after every node that is
// not a view operation. With test_nodes the whole graph is computed at once and only those nodes are compared.
GCUDA_API gcuda_status gcuda_backend_compare_graph_backend(gcuda_backend_t backend1, gcuda_backend_t backend2, struct gcuda_cgraph * graph, gcuda_backend_eval_callback callback, void * user_data, struct gcuda_tensor * const * test_nodes, size_t n_test_nodes);

// =====================================================================================================
// >>cpu   CPU backend, thread pool
// =====================================================================================================

// -- thread pool. The thread that computes a graph works too, as thread 0; the pool adds n_threads - 1 of its own, which
// sleep between graphs. One graph at a time per pool: a second caller waits for the first.
#define GCUDA_MAX_N_THREADS 512

enum gcuda_sched_priority {
    GCUDA_SCHED_PRIO_LOW = -1,
    GCUDA_SCHED_PRIO_NORMAL = 0, // as the creating thread
    GCUDA_SCHED_PRIO_MEDIUM = 1, // from here on the system may ask for privileges; refused means normal
    GCUDA_SCHED_PRIO_HIGH = 2,
    GCUDA_SCHED_PRIO_REALTIME = 3
};

struct gcuda_threadpool_params {
    int n_threads;                     // with the caller; 0 means GCUDA_DEFAULT_N_THREADS
    bool cpumask[GCUDA_MAX_N_THREADS]; // processors the pool's threads may use; none set means as the creating thread
    enum gcuda_sched_priority prio;    // of the pool's threads; the caller's own is never changed
    uint32_t poll;                     // how long a thread looks for the next node before it sleeps: 100 is 40 us, 1 next to
                                       // nothing; 0 means 50. Bounded, so an idle pool costs nothing whatever is set
    bool strict_cpu;                   // thread i on the i-th processor of cpumask alone (the first is left to the caller)
    bool paused;                       // start asleep; the next graph wakes it
};

struct gcuda_threadpool; // opaque

GCUDA_API struct gcuda_threadpool_params gcuda_threadpool_params_default(int n_threads);
GCUDA_API void gcuda_threadpool_params_init(struct gcuda_threadpool_params * p, int n_threads);
// True when both make the same pool.
GCUDA_API bool gcuda_threadpool_params_match(const struct gcuda_threadpool_params * a, const struct gcuda_threadpool_params * b);
// params == NULL means the defaults. Fails: NULL when n_threads is negative or above GCUDA_MAX_N_THREADS, or without
// memory. When the system gives fewer threads than wanted, the pool has those (a warning is logged, get_n_threads tells).
GCUDA_API struct gcuda_threadpool * gcuda_threadpool_new(const struct gcuda_threadpool_params * params);
// Joins the threads. No graph may be running on it. NULL is allowed.
GCUDA_API void gcuda_threadpool_free(struct gcuda_threadpool * pool);
GCUDA_API int gcuda_threadpool_get_n_threads(const struct gcuda_threadpool * pool); // NULL: 1
// Threads sleep at once instead of polling first; resume, or the next graph, ends it. NULL is allowed.
GCUDA_API void gcuda_threadpool_pause(struct gcuda_threadpool * pool);
GCUDA_API void gcuda_threadpool_resume(struct gcuda_threadpool * pool);

typedef bool (*gcuda_abort_callback)(void * data); // true: stop the graph; called on the computing thread

GCUDA_API gcuda_backend_t gcuda_backend_cpu_init(void); // NULL when out of memory
GCUDA_API bool gcuda_backend_is_cpu(gcuda_backend_t backend);
GCUDA_API gcuda_status gcuda_backend_cpu_set_n_threads(gcuda_backend_t backend, int n_threads); // <= 0: the pool's size or the default
GCUDA_API gcuda_status gcuda_backend_cpu_set_threadpool(gcuda_backend_t backend, struct gcuda_threadpool * threadpool); // NULL: its own
// Asked at least every 10 ms while a graph runs; true ends it with GCUDA_STATUS_ABORTED.
GCUDA_API gcuda_status gcuda_backend_cpu_set_abort_callback(gcuda_backend_t backend, gcuda_abort_callback callback, void * data);
// Debug mode: after each node look for NaN and infinity; the first one found fails the graph with the node's name.
GCUDA_API gcuda_status gcuda_backend_cpu_set_check_finite(gcuda_backend_t backend, bool check);
GCUDA_API gcuda_backend_reg_t gcuda_backend_cpu_reg(void);
GCUDA_API gcuda_backend_buffer_type_t gcuda_backend_cpu_buffer_type(void);
// A buffer over the caller's memory, 32-byte aligned, kept by the caller. NULL on failure.
GCUDA_API gcuda_backend_buffer_t gcuda_backend_cpu_buffer_from_ptr(void * ptr, size_t size);

// Instruction set of the CPU kernels: by default the best of this machine, or what the environment variable
// GCUDA_CPU_ISA names (scalar, neon, avx2, avx512, avx512vnni). Results differ between sets within the documented
// accuracy, never within one. Set it for tests or for equal results on unequal machines, while no graph runs and
// before graph_plan.
enum gcuda_cpu_isa {
    GCUDA_CPU_ISA_AUTO = 0,
    GCUDA_CPU_ISA_SCALAR,
    GCUDA_CPU_ISA_NEON,
    GCUDA_CPU_ISA_AVX2,       // with FMA and F16C
    GCUDA_CPU_ISA_AVX512,     // F, BW, DQ and VL
    GCUDA_CPU_ISA_AVX512_VNNI,
    GCUDA_CPU_ISA_COUNT
};
GCUDA_API gcuda_status gcuda_cpu_set_isa(enum gcuda_cpu_isa isa); // UNSUPPORTED: not on this machine
GCUDA_API enum gcuda_cpu_isa gcuda_cpu_get_isa(void);            // never AUTO

// Without a backend: compute a graph whose tensors are in host memory.
struct gcuda_cplan {
    size_t work_size;    // bytes that work_data must have; may be 0
    uint8_t * work_data; // the caller's, any alignment
    int n_threads;
    struct gcuda_threadpool * threadpool; // NULL: threads for this call only
    gcuda_abort_callback abort_callback;
    void * abort_callback_data;
    bool check_finite;
};
// n_threads <= 0: the default. work_size is 0 and the last error is set when the graph cannot be computed.
GCUDA_API struct gcuda_cplan gcuda_graph_plan(const struct gcuda_cgraph * graph, int n_threads, struct gcuda_threadpool * threadpool);
GCUDA_API gcuda_status gcuda_graph_compute(struct gcuda_cgraph * graph, struct gcuda_cplan * cplan);
GCUDA_API gcuda_status gcuda_graph_compute_with_ctx(struct gcuda_context * ctx, struct gcuda_cgraph * graph, int n_threads); // work memory from ctx

// =====================================================================================================
// >>quantize   host quantizers for weights
// =====================================================================================================

// Quantizes n_rows rows of n_per_row floats, from src + start (whole rows) into the same rows of dst. Types: F32, F16,
// BF16 and every quantized type but the codebook formats IQ1_*, IQ2_*, IQ3_*, for which no quantizer is built in.
//
//   dst      blocks of `type`, aligned for them (4 bytes for F32 and Q8_K, 1 for MXFP4, 2 for the others); only the
//            rows asked for are written
//   imatrix  NULL, or n_per_row weights >= 0: what an error in each column costs, as a rule the mean square of the
//            activations that meet it. Used by Q4_0 Q4_1 Q5_0 Q5_1 Q2_K to Q6_K IQ4_NL IQ4_XS, ignored by the others
//   returns  bytes written; 0 and gcuda_last_error() for another type, rows that are not whole blocks, a start inside
//            a row, NULL, sizes that overflow
// Any input is accepted: NaN and infinity give some block; gcuda_validate_row_data says whether its scale is finite.
// With IQ4_NL this searches for better scales than the conversion of cpy and set_rows, which must be fast.
GCUDA_API size_t gcuda_quantize_chunk(enum gcuda_type type, const float * src, void * dst, int64_t start,
                                      int64_t n_rows, int64_t n_per_row, const float * imatrix);

// The same with a status, from row 0, on n_threads threads (0: as many as there are processors). The bytes do not
// depend on the number of threads.
GCUDA_API gcuda_status gcuda_quantize_rows(enum gcuda_type type, const float * src, void * dst, int64_t n_rows,
                                           int64_t n_per_row, const float * imatrix, int n_threads);

// True for the formats that nobody quantizes well without importance data: IQ2_XXS, IQ2_XS, IQ1_S.
GCUDA_API bool gcuda_quantize_requires_imatrix(enum gcuda_type type);

// For data from outside: whether n_bytes are whole blocks without NaN or infinity in a scale (or a value of F32, F16,
// BF16, F64). Needs no alignment. False sets gcuda_last_error().
GCUDA_API bool gcuda_validate_row_data(enum gcuda_type type, const void * data, size_t n_bytes);

// The same with a status. *bad_block (may be NULL) becomes the first bad block, an element of a plain type; -1: none.
GCUDA_API gcuda_status gcuda_check_row_data(enum gcuda_type type, const void * data, size_t n_bytes,
                                            int64_t * bad_block);

#ifdef __cplusplus
}
#endif

#endif // GCUDA_H

#ifdef GCUDA_IMPLEMENTATION
#ifndef GCUDA_IMPLEMENTATION_DONE
#define GCUDA_IMPLEMENTATION_DONE

// =====================================================================================================
// >>impl-platform   compiler wrappers, atomics, threads, clock, CPU features, memory, environment, libraries
// =====================================================================================================
// The only section that knows operating systems and compilers. Tested: Linux with gcc and clang, mingw-w64 under wine.
// MSVC and macOS branches are written from their documentation and untested.

#if defined(__GNUC__) || defined(__clang__)
#define GCUDAI_GNU_LIKE 1
#define GCUDAI_NOINLINE __attribute__((noinline))
#define GCUDAI_INLINE inline __attribute__((always_inline)) // kernels that constant arguments specialise
#define GCUDAI_LIKELY(x) (__builtin_expect(!!(x), 1))
#if defined(__MINGW_PRINTF_FORMAT)
#define GCUDAI_PRINTF(a, b) __attribute__((format(__MINGW_PRINTF_FORMAT, a, b)))
#else
#define GCUDAI_PRINTF(a, b) __attribute__((format(printf, a, b)))
#endif
#else
#define GCUDAI_GNU_LIKE 0
#define GCUDAI_NOINLINE
#define GCUDAI_INLINE inline
#define GCUDAI_LIKELY(x) (x)
#define GCUDAI_PRINTF(a, b)
#endif
#if defined(_MSC_VER) && !defined(__clang__)
#define GCUDAI_RESTRICT __restrict
#else
#define GCUDAI_RESTRICT __restrict__
#endif

#if defined(GCUDA_NO_THREADS)
#define GCUDAI_THREAD_LOCAL
#elif GCUDAI_GNU_LIKE
#define GCUDAI_THREAD_LOCAL __thread
#else
#define GCUDAI_THREAD_LOCAL __declspec(thread)
#endif

#if defined(_WIN32)
#if !defined(WIN32_LEAN_AND_MEAN)
#define WIN32_LEAN_AND_MEAN
#endif
#if !defined(NOMINMAX)
#define NOMINMAX
#endif
#include <windows.h>
#if !defined(GCUDA_NO_THREADS)
#include <process.h>
#endif
#undef near // windows.h defines these two, and they are good names for variables
#undef far
#else
#if !defined(GCUDA_NO_CUDA)
#include <dlfcn.h>
#endif
#include <sched.h>
#include <sys/types.h>
#include <unistd.h>
#if !defined(GCUDA_NO_THREADS)
#include <pthread.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// -- SIMD: functions carry a target attribute and are called only behind gcudai_cpu_has(), so that a plain -O2 build
// -- uses what the machine has. GCUDA_NO_SIMD leaves the portable code only. mingw-gcc aligns the stack to 16 bytes and
// -- spills 32-byte registers with aligned moves all the same (GCC bug 54412): off there.
#define GCUDAI_HAVE_X86_SIMD 0
#define GCUDAI_HAVE_NEON 0
#define GCUDAI_HAVE_DOTPROD 0
#if !defined(GCUDA_NO_SIMD)
#if (defined(__x86_64__) || defined(_M_X64)) && !(defined(_WIN32) && defined(__GNUC__) && !defined(__clang__))
#undef GCUDAI_HAVE_X86_SIMD
#define GCUDAI_HAVE_X86_SIMD 1
#include <immintrin.h>
#endif
#if (defined(__aarch64__) && defined(__ARM_NEON)) || defined(_M_ARM64)
#undef GCUDAI_HAVE_NEON
#define GCUDAI_HAVE_NEON 1
#include <arm_neon.h>
// gcc declares the dot product intrinsics always, clang only when the whole file is built for them
#if defined(__ARM_FEATURE_DOTPROD) || (defined(__GNUC__) && !defined(__clang__))
#undef GCUDAI_HAVE_DOTPROD
#define GCUDAI_HAVE_DOTPROD 1
#endif
#endif
#endif
#if GCUDAI_HAVE_X86_SIMD && GCUDAI_GNU_LIKE
#define GCUDAI_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define GCUDAI_TARGET_AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")))
#define GCUDAI_TARGET_AVX512VNNI __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#else // MSVC offers every intrinsic in every function
#define GCUDAI_TARGET_AVX2
#define GCUDAI_TARGET_AVX512
#define GCUDAI_TARGET_AVX512VNNI
#endif
// Between these two stand SIMD functions: gcc 12's own AVX-512 headers raise "used uninitialized" when inlined (GCC bug
// 105593), so that warning rests there.
#if defined(__GNUC__) && !defined(__clang__)
#define GCUDAI_SIMD_BEGIN                                        \
    _Pragma("GCC diagnostic push")                               \
    _Pragma("GCC diagnostic ignored \"-Wuninitialized\"")        \
    _Pragma("GCC diagnostic ignored \"-Wmaybe-uninitialized\"")
#define GCUDAI_SIMD_END _Pragma("GCC diagnostic pop")
#else
#define GCUDAI_SIMD_BEGIN
#define GCUDAI_SIMD_END
#endif
#if GCUDAI_HAVE_DOTPROD && !defined(__ARM_FEATURE_DOTPROD)
#define GCUDAI_TARGET_DOTPROD __attribute__((target("arch=armv8.2-a+dotprod")))
#else
#define GCUDAI_TARGET_DOTPROD
#endif

// -- atomics, all sequentially consistent. Zero-filled means 0. `add` returns the value before.
typedef struct { int32_t value; } gcudai_atomic_i32;
typedef struct { int64_t value; } gcudai_atomic_i64;

#if GCUDAI_GNU_LIKE && !defined(GCUDA_NO_THREADS)
static GCUDAI_UNUSED int32_t gcudai_atomic_load_i32(const gcudai_atomic_i32 * a) {
    return __atomic_load_n(&a->value, __ATOMIC_SEQ_CST);
}
static GCUDAI_UNUSED void gcudai_atomic_store_i32(gcudai_atomic_i32 * a, int32_t v) {
    __atomic_store_n(&a->value, v, __ATOMIC_SEQ_CST);
}
static GCUDAI_UNUSED int32_t gcudai_atomic_add_i32(gcudai_atomic_i32 * a, int32_t v) {
    return __atomic_fetch_add(&a->value, v, __ATOMIC_SEQ_CST);
}
static GCUDAI_UNUSED bool gcudai_atomic_cas_i32(gcudai_atomic_i32 * a, int32_t expected, int32_t v) {
    return __atomic_compare_exchange_n(&a->value, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
static GCUDAI_UNUSED int64_t gcudai_atomic_load_i64(const gcudai_atomic_i64 * a) {
    return __atomic_load_n(&a->value, __ATOMIC_SEQ_CST);
}
static GCUDAI_UNUSED void gcudai_atomic_store_i64(gcudai_atomic_i64 * a, int64_t v) {
    __atomic_store_n(&a->value, v, __ATOMIC_SEQ_CST);
}
static GCUDAI_UNUSED int64_t gcudai_atomic_add_i64(gcudai_atomic_i64 * a, int64_t v) {
    return __atomic_fetch_add(&a->value, v, __ATOMIC_SEQ_CST);
}
static GCUDAI_UNUSED bool gcudai_atomic_cas_i64(gcudai_atomic_i64 * a, int64_t expected, int64_t v) {
    return __atomic_compare_exchange_n(&a->value, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
#elif !defined(GCUDA_NO_THREADS) // MSVC: compare-exchange exists for 64 bits on 32-bit machines too
static int32_t gcudai_atomic_load_i32(const gcudai_atomic_i32 * a) {
    return (int32_t) InterlockedCompareExchange((volatile LONG *) (uintptr_t) &a->value, 0, 0);
}
static void gcudai_atomic_store_i32(gcudai_atomic_i32 * a, int32_t v) {
    (void) InterlockedExchange((volatile LONG *) &a->value, (LONG) v);
}
static int32_t gcudai_atomic_add_i32(gcudai_atomic_i32 * a, int32_t v) {
    return (int32_t) InterlockedExchangeAdd((volatile LONG *) &a->value, (LONG) v);
}
static bool gcudai_atomic_cas_i32(gcudai_atomic_i32 * a, int32_t expected, int32_t v) {
    return InterlockedCompareExchange((volatile LONG *) &a->value, (LONG) v, (LONG) expected) == (LONG) expected;
}
static bool gcudai_atomic_cas_i64(gcudai_atomic_i64 * a, int64_t expected, int64_t v) {
    return InterlockedCompareExchange64((volatile LONG64 *) &a->value, v, expected) == expected;
}
static int64_t gcudai_atomic_load_i64(const gcudai_atomic_i64 * a) {
    return (int64_t) InterlockedCompareExchange64((volatile LONG64 *) (uintptr_t) &a->value, 0, 0);
}
static int64_t gcudai_atomic_add_i64(gcudai_atomic_i64 * a, int64_t v) {
    int64_t old = gcudai_atomic_load_i64(a);
    while (!gcudai_atomic_cas_i64(a, old, old + v)) { old = gcudai_atomic_load_i64(a); }
    return old;
}
static void gcudai_atomic_store_i64(gcudai_atomic_i64 * a, int64_t v) {
    int64_t old = gcudai_atomic_load_i64(a);
    while (!gcudai_atomic_cas_i64(a, old, v)) { old = gcudai_atomic_load_i64(a); }
}
#else // one thread: plain memory
static GCUDAI_UNUSED int32_t gcudai_atomic_load_i32(const gcudai_atomic_i32 * a) { return a->value; }
static GCUDAI_UNUSED void gcudai_atomic_store_i32(gcudai_atomic_i32 * a, int32_t v) { a->value = v; }
static GCUDAI_UNUSED int32_t gcudai_atomic_add_i32(gcudai_atomic_i32 * a, int32_t v) {
    const int32_t old = a->value;
    a->value = old + v;
    return old;
}
static GCUDAI_UNUSED bool gcudai_atomic_cas_i32(gcudai_atomic_i32 * a, int32_t expected, int32_t v) {
    if (a->value != expected) { return false; }
    a->value = v;
    return true;
}
static GCUDAI_UNUSED int64_t gcudai_atomic_load_i64(const gcudai_atomic_i64 * a) { return a->value; }
static GCUDAI_UNUSED void gcudai_atomic_store_i64(gcudai_atomic_i64 * a, int64_t v) { a->value = v; }
static GCUDAI_UNUSED int64_t gcudai_atomic_add_i64(gcudai_atomic_i64 * a, int64_t v) {
    const int64_t old = a->value;
    a->value = old + v;
    return old;
}
static GCUDAI_UNUSED bool gcudai_atomic_cas_i64(gcudai_atomic_i64 * a, int64_t expected, int64_t v) {
    if (a->value != expected) { return false; }
    a->value = v;
    return true;
}
#endif

// Tells the core that this is a waiting loop: saves power and lets the sibling hyper-thread run.
static GCUDAI_UNUSED void gcudai_cpu_relax(void) {
#if GCUDAI_GNU_LIKE && (defined(__x86_64__) || defined(__i386__))
    __builtin_ia32_pause();
#elif GCUDAI_GNU_LIKE && defined(__aarch64__)
    __asm__ volatile("yield");
#elif defined(_WIN32)
    YieldProcessor();
#endif
}

static GCUDAI_UNUSED void gcudai_cpu_yield(void) {
#if defined(_WIN32)
    (void) SwitchToThread();
#else
    (void) sched_yield();
#endif
}

// -- clock: microseconds from an arbitrary start, never going back
static GCUDAI_UNUSED int64_t gcudai_time_us(void) {
#if defined(_WIN32)
    LARGE_INTEGER ticks, per_second;
    (void) QueryPerformanceCounter(&ticks);
    (void) QueryPerformanceFrequency(&per_second);
    // split, because ticks * 1000000 overflows after some days at 10 MHz
    const int64_t whole = ticks.QuadPart / per_second.QuadPart;
    const int64_t rest = ticks.QuadPart % per_second.QuadPart;
    return whole * 1000000 + rest * 1000000 / per_second.QuadPart;
#elif defined(CLOCK_MONOTONIC)
    struct timespec t;
    (void) clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t) t.tv_sec * 1000000 + t.tv_nsec / 1000;
#elif defined(TIME_UTC)
    struct timespec t;
    (void) timespec_get(&t, TIME_UTC);
    return (int64_t) t.tv_sec * 1000000 + t.tv_nsec / 1000;
#else
#error "gcuda.h: put the include with GCUDA_IMPLEMENTATION first in its file, or define _GNU_SOURCE (strict C99 hides the clock)"
#endif
}

// -- mutex, condition variable, thread. A mutex is not recursive.
#if defined(GCUDA_NO_THREADS)
typedef int gcudai_mutex;
typedef int gcudai_cond;
typedef struct { int unused; } gcudai_thread;
#define GCUDAI_MUTEX_INIT 0
static GCUDAI_UNUSED bool gcudai_mutex_init(gcudai_mutex * m) { *m = 0; return true; }
static GCUDAI_UNUSED void gcudai_mutex_destroy(gcudai_mutex * m) { (void) m; }
static GCUDAI_UNUSED void gcudai_mutex_lock(gcudai_mutex * m) { (void) m; }
static GCUDAI_UNUSED void gcudai_mutex_unlock(gcudai_mutex * m) { (void) m; }
static GCUDAI_UNUSED bool gcudai_cond_init(gcudai_cond * c) { *c = 0; return true; }
static GCUDAI_UNUSED void gcudai_cond_destroy(gcudai_cond * c) { (void) c; }
static GCUDAI_UNUSED void gcudai_cond_wait(gcudai_cond * c, gcudai_mutex * m) { (void) c; (void) m; }
static GCUDAI_UNUSED bool gcudai_cond_wait_us(gcudai_cond * c, gcudai_mutex * m, int64_t us) {
    (void) c; (void) m; (void) us;
    return false;
}
static GCUDAI_UNUSED void gcudai_cond_signal(gcudai_cond * c) { (void) c; }
static GCUDAI_UNUSED void gcudai_cond_broadcast(gcudai_cond * c) { (void) c; }
static GCUDAI_UNUSED bool gcudai_thread_start(gcudai_thread * t, void (*fn)(void *), void * arg) {
    (void) t; (void) fn; (void) arg;
    return false;
}
static GCUDAI_UNUSED void gcudai_thread_join(gcudai_thread * t) { (void) t; }

#elif defined(_WIN32)
typedef SRWLOCK gcudai_mutex;
typedef CONDITION_VARIABLE gcudai_cond;
typedef struct { uintptr_t handle; void (*fn)(void *); void * arg; } gcudai_thread;
#define GCUDAI_MUTEX_INIT SRWLOCK_INIT
static GCUDAI_UNUSED bool gcudai_mutex_init(gcudai_mutex * m) { InitializeSRWLock(m); return true; }
static GCUDAI_UNUSED void gcudai_mutex_destroy(gcudai_mutex * m) { (void) m; }
static GCUDAI_UNUSED void gcudai_mutex_lock(gcudai_mutex * m) { AcquireSRWLockExclusive(m); }
static GCUDAI_UNUSED void gcudai_mutex_unlock(gcudai_mutex * m) { ReleaseSRWLockExclusive(m); }
static GCUDAI_UNUSED bool gcudai_cond_init(gcudai_cond * c) { InitializeConditionVariable(c); return true; }
static GCUDAI_UNUSED void gcudai_cond_destroy(gcudai_cond * c) { (void) c; }
static GCUDAI_UNUSED void gcudai_cond_wait(gcudai_cond * c, gcudai_mutex * m) {
    (void) SleepConditionVariableSRW(c, m, INFINITE, 0);
}
// false after `us` microseconds without a signal; may also wake for no reason, as any condition variable
static GCUDAI_UNUSED bool gcudai_cond_wait_us(gcudai_cond * c, gcudai_mutex * m, int64_t us) {
    return SleepConditionVariableSRW(c, m, (DWORD) ((us + 999) / 1000), 0) != 0;
}
static GCUDAI_UNUSED void gcudai_cond_signal(gcudai_cond * c) { WakeConditionVariable(c); }
static GCUDAI_UNUSED void gcudai_cond_broadcast(gcudai_cond * c) { WakeAllConditionVariable(c); }

static unsigned __stdcall gcudai_thread_main(void * arg) {
    gcudai_thread * t = (gcudai_thread *) arg;
    t->fn(t->arg);
    return 0;
}
// `t` must stay in place until the join. false: the system has no thread left.
static GCUDAI_UNUSED bool gcudai_thread_start(gcudai_thread * t, void (*fn)(void *), void * arg) {
    t->fn = fn;
    t->arg = arg;
    t->handle = (uintptr_t) _beginthreadex(NULL, 0, gcudai_thread_main, t, 0, NULL);
    return t->handle != 0;
}
static GCUDAI_UNUSED void gcudai_thread_join(gcudai_thread * t) {
    (void) WaitForSingleObject((HANDLE) t->handle, INFINITE);
    (void) CloseHandle((HANDLE) t->handle);
}

#else // POSIX
typedef pthread_mutex_t gcudai_mutex;
typedef pthread_cond_t gcudai_cond;
typedef struct { pthread_t handle; void (*fn)(void *); void * arg; } gcudai_thread;
#define GCUDAI_MUTEX_INIT PTHREAD_MUTEX_INITIALIZER
static GCUDAI_UNUSED bool gcudai_mutex_init(gcudai_mutex * m) { return pthread_mutex_init(m, NULL) == 0; }
static GCUDAI_UNUSED void gcudai_mutex_destroy(gcudai_mutex * m) { (void) pthread_mutex_destroy(m); }
static GCUDAI_UNUSED void gcudai_mutex_lock(gcudai_mutex * m) { (void) pthread_mutex_lock(m); }
static GCUDAI_UNUSED void gcudai_mutex_unlock(gcudai_mutex * m) { (void) pthread_mutex_unlock(m); }

// Timed waits follow the monotonic clock where the system can, so that setting the wall clock does not stall them.
#if defined(__linux__) && defined(CLOCK_MONOTONIC)
#define GCUDAI_COND_MONOTONIC 1
#else
#define GCUDAI_COND_MONOTONIC 0
#endif
static GCUDAI_UNUSED bool gcudai_cond_init(gcudai_cond * c) {
#if GCUDAI_COND_MONOTONIC
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0) { return false; }
    const bool ok = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 && pthread_cond_init(c, &attr) == 0;
    (void) pthread_condattr_destroy(&attr);
    return ok;
#else
    return pthread_cond_init(c, NULL) == 0;
#endif
}
static GCUDAI_UNUSED void gcudai_cond_destroy(gcudai_cond * c) { (void) pthread_cond_destroy(c); }
static GCUDAI_UNUSED void gcudai_cond_wait(gcudai_cond * c, gcudai_mutex * m) { (void) pthread_cond_wait(c, m); }
// false after `us` microseconds without a signal; may also wake for no reason, as any condition variable
static GCUDAI_UNUSED bool gcudai_cond_wait_us(gcudai_cond * c, gcudai_mutex * m, int64_t us) {
    struct timespec t;
#if GCUDAI_COND_MONOTONIC
    (void) clock_gettime(CLOCK_MONOTONIC, &t);
#elif defined(CLOCK_REALTIME)
    (void) clock_gettime(CLOCK_REALTIME, &t);
#else
    (void) timespec_get(&t, TIME_UTC);
#endif
    const int64_t ns = (int64_t) t.tv_nsec + us % 1000000 * 1000;
    t.tv_sec += (time_t) (us / 1000000 + ns / 1000000000);
    t.tv_nsec = (long) (ns % 1000000000);
    return pthread_cond_timedwait(c, m, &t) == 0;
}
static GCUDAI_UNUSED void gcudai_cond_signal(gcudai_cond * c) { (void) pthread_cond_signal(c); }
static GCUDAI_UNUSED void gcudai_cond_broadcast(gcudai_cond * c) { (void) pthread_cond_broadcast(c); }

static void * gcudai_thread_main(void * arg) {
    gcudai_thread * t = (gcudai_thread *) arg;
    t->fn(t->arg);
    return NULL;
}
// `t` must stay in place until the join. false: the system has no thread left.
static GCUDAI_UNUSED bool gcudai_thread_start(gcudai_thread * t, void (*fn)(void *), void * arg) {
    t->fn = fn;
    t->arg = arg;
    return pthread_create(&t->handle, NULL, gcudai_thread_main, t) == 0;
}
static GCUDAI_UNUSED void gcudai_thread_join(gcudai_thread * t) { (void) pthread_join(t->handle, NULL); }
#endif

// Binds the calling thread to the processors with mask[i] set; false where the system refuses or cannot.
// Windows: the first 64 (32 in a 32-bit program), which is one processor group.
static GCUDAI_UNUSED bool gcudai_thread_set_affinity(const bool * mask, int n_cpus) {
#if defined(GCUDA_NO_THREADS)
    (void) mask; (void) n_cpus;
    return false;
#elif defined(_WIN32)
    DWORD_PTR bits = 0;
    for (int i = 0; i < n_cpus && i < (int) (8 * sizeof(bits)); ++i) {
        if (mask[i]) { bits |= (DWORD_PTR) 1 << i; }
    }
    return bits != 0 && SetThreadAffinityMask(GetCurrentThread(), bits) != 0;
#elif defined(__linux__) && defined(CPU_SETSIZE)
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < n_cpus && i < CPU_SETSIZE; ++i) {
        if (mask[i]) { CPU_SET((size_t) i, &set); }
    }
    return pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
#else
    (void) mask; (void) n_cpus;
    return false;
#endif
}

// Scheduling of the calling thread: -1 background, 0 as inherited, 1 medium, 2 high, 3 realtime. 1 to 3 need privileges
// on Linux; false where the system refuses, and then nothing has changed.
static GCUDAI_UNUSED bool gcudai_thread_set_priority(int prio) {
    if (prio == 0) { return true; }
#if defined(GCUDA_NO_THREADS)
    return false;
#elif defined(_WIN32)
    const int level = prio < 0 ? THREAD_PRIORITY_BELOW_NORMAL : prio == 1 ? THREAD_PRIORITY_ABOVE_NORMAL :
                      prio == 2 ? THREAD_PRIORITY_HIGHEST : THREAD_PRIORITY_TIME_CRITICAL;
    return SetThreadPriority(GetCurrentThread(), level) != 0;
#else
    struct sched_param param;
    memset(&param, 0, sizeof(param));
    if (prio < 0) {
#if defined(SCHED_BATCH)
        return pthread_setschedparam(pthread_self(), SCHED_BATCH, &param) == 0;
#else
        return false;
#endif
    }
    const int low = sched_get_priority_min(SCHED_FIFO);
    const int high = sched_get_priority_max(SCHED_FIFO);
    const int percent = prio == 1 ? 40 : prio == 2 ? 80 : 90; // room above is left to drivers and watchdogs
    param.sched_priority = low + (high - low) * percent / 100;
    return pthread_setschedparam(pthread_self(), SCHED_FIFO, &param) == 0;
#endif
}

// Processors this process may use, at least 1.
static GCUDAI_UNUSED int gcudai_cpu_count(void) {
#if defined(_WIN32)
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info.dwNumberOfProcessors > 0 ? (int) info.dwNumberOfProcessors : 1;
#else
#if defined(__linux__) && defined(CPU_SETSIZE)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) { return CPU_COUNT(&set); }
#endif
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int) n : 1;
#endif
}

// -- CPU features, as the processor and the operating system (saved registers) both offer them
enum {
    GCUDAI_CPU_AVX2 = 1,
    GCUDAI_CPU_FMA = 2,
    GCUDAI_CPU_F16C = 4,
    GCUDAI_CPU_AVX512 = 8, // F, BW, DQ and VL
    GCUDAI_CPU_VNNI = 16,  // AVX512-VNNI
    GCUDAI_CPU_NEON = 32,
    GCUDAI_CPU_DOTPROD = 64,
    GCUDAI_CPU_KNOWN = 1 << 30
};

#if GCUDAI_HAVE_X86_SIMD && GCUDAI_GNU_LIKE
#include <cpuid.h>
static int32_t gcudai_cpu_detect(void) {
    __builtin_cpu_init(); // looks at xgetbv too
    int32_t f = 0;
    if (__builtin_cpu_supports("avx2")) { f |= GCUDAI_CPU_AVX2; }
    if (__builtin_cpu_supports("fma")) { f |= GCUDAI_CPU_FMA; }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
        f |= GCUDAI_CPU_AVX512;
        if (__builtin_cpu_supports("avx512vnni")) { f |= GCUDAI_CPU_VNNI; }
    }
    unsigned a = 0, b = 0, c = 0, d = 0; // clang 14 does not know "f16c"; with AVX2 the registers are saved
    if ((f & GCUDAI_CPU_AVX2) != 0 && __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1u) != 0) { f |= GCUDAI_CPU_F16C; }
    return f;
}
#elif GCUDAI_HAVE_X86_SIMD
#include <intrin.h>
static int32_t gcudai_cpu_detect(void) {
    int r[4]; // eax, ebx, ecx, edx
    __cpuid(r, 0);
    if (r[0] < 7) { return 0; }
    __cpuid(r, 1);
    const unsigned c1 = (unsigned) r[2];
    if ((c1 >> 27 & 1u) == 0) { return 0; } // no xgetbv
    const unsigned long long saved = _xgetbv(0);
    __cpuidex(r, 7, 0);
    const unsigned b7 = (unsigned) r[1], c7 = (unsigned) r[2];
    const unsigned zmm = (1u << 16) | (1u << 17) | (1u << 30) | (1u << 31); // F DQ BW VL
    int32_t f = 0;
    if ((saved & 0x06) != 0x06) { return 0; } // xmm and ymm
    if ((b7 >> 5 & 1u) != 0) { f |= GCUDAI_CPU_AVX2; }
    if ((c1 >> 12 & 1u) != 0) { f |= GCUDAI_CPU_FMA; }
    if ((c1 >> 29 & 1u) != 0) { f |= GCUDAI_CPU_F16C; }
    if ((saved & 0xe6) == 0xe6 && (b7 & zmm) == zmm) {
        f |= GCUDAI_CPU_AVX512;
        if ((c7 >> 11 & 1u) != 0) { f |= GCUDAI_CPU_VNNI; }
    }
    return f;
}
#elif GCUDAI_HAVE_NEON
static int32_t gcudai_cpu_detect(void) {
    int32_t f = GCUDAI_CPU_NEON;
#if defined(__ARM_FEATURE_DOTPROD)
    f |= GCUDAI_CPU_DOTPROD;
#elif defined(__linux__)
    if ((getauxval(AT_HWCAP) >> 20 & 1u) != 0) { f |= GCUDAI_CPU_DOTPROD; } // HWCAP_ASIMDDP
#endif
    return f;
}
#else
static int32_t gcudai_cpu_detect(void) { return 0; }
#endif

// True when all of `features` (GCUDAI_CPU_A | GCUDAI_CPU_B) are there. The cache is a constant of the machine: threads
// that meet it empty all write the same value.
static GCUDAI_UNUSED bool gcudai_cpu_has(int features) {
    static gcudai_atomic_i32 cache;
    int32_t f = gcudai_atomic_load_i32(&cache);
    if (f == 0) {
        f = gcudai_cpu_detect() | GCUDAI_CPU_KNOWN;
        gcudai_atomic_store_i32(&cache, f);
    }
    return (f & features) == features;
}

// -- memory of the machine in bytes; 0 where the system does not tell. A size_t that is too small saturates.
static GCUDAI_UNUSED size_t gcudai_saturate_size(uint64_t v) { return v > (uint64_t) SIZE_MAX ? SIZE_MAX : (size_t) v; }

static GCUDAI_UNUSED void gcudai_memory_query(size_t * available_bytes, size_t * total_bytes) {
    uint64_t total = 0, available = 0;
#if defined(_WIN32)
    MEMORYSTATUSEX status;
    memset(&status, 0, sizeof(status));
    status.dwLength = sizeof(status);
    if (GlobalMemoryStatusEx(&status)) {
        total = status.ullTotalPhys;
        available = status.ullAvailPhys;
    }
#elif defined(__APPLE__)
    size_t len = sizeof(total);
    (void) sysctlbyname("hw.memsize", &total, &len, NULL, 0);
#else
    const long pages = sysconf(_SC_PHYS_PAGES);
    const long page_bytes = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page_bytes > 0) { total = (uint64_t) pages * (uint64_t) page_bytes; }
    FILE * f = fopen("/proc/meminfo", "r");
    if (f != NULL) { // MemAvailable counts caches that can be dropped, what sysconf calls available does not
        char line[128];
        unsigned long long kib = 0;
        while (available == 0 && fgets(line, sizeof(line), f) != NULL) {
            if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) { available = (uint64_t) kib * 1024; }
        }
        (void) fclose(f);
    }
#endif
    if (available == 0 || available > total) { available = total; }
    *available_bytes = gcudai_saturate_size(available);
    *total_bytes = gcudai_saturate_size(total);
}

// Value of an environment variable or NULL. GCUDA_NO_ENV: the library never looks.
static GCUDAI_UNUSED const char * gcudai_env(const char * name) {
#if defined(GCUDA_NO_ENV)
    (void) name;
    return NULL;
#else
    return getenv(name);
#endif
}

#if !defined(GCUDA_NO_CUDA)
// -- shared libraries, for drivers that may be missing. Symbols are addresses of functions or data, copied into a
// -- pointer of the wanted type: `gcudai_dl_symbol(lib, "cuInit", &fn, sizeof(fn))`, false when not there.
static GCUDAI_UNUSED void * gcudai_dl_open(const char * name) {
#if defined(_WIN32)
    return (void *) LoadLibraryA(name);
#else
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
#endif
}

static GCUDAI_UNUSED bool gcudai_dl_symbol(void * lib, const char * name, void * out_pointer, size_t pointer_size) {
#if defined(_WIN32)
    FARPROC p = GetProcAddress((HMODULE) lib, name);
#else
    void * p = dlsym(lib, name);
#endif
    if (p == NULL || pointer_size != sizeof(p)) { return false; }
    memcpy(out_pointer, &p, sizeof(p)); // a cast between data and function pointers is not ISO C
    return true;
}

static GCUDAI_UNUSED void gcudai_dl_close(void * lib) {
    if (lib == NULL) { return; }
#if defined(_WIN32)
    (void) FreeLibrary((HMODULE) lib);
#else
    (void) dlclose(lib);
#endif
}
#endif // GCUDA_NO_CUDA

#include <math.h>
#include <stdarg.h>

#ifdef __cplusplus
extern "C" {
#endif

// =====================================================================================================
// >>impl-status   errors, log, allocation
// =====================================================================================================

#define GCUDAI_ZERO(x) memset(&(x), 0, sizeof(x))
#define GCUDAI_MIN(a, b) ((a) < (b) ? (a) : (b))
#define GCUDAI_MAX(a, b) ((a) > (b) ? (a) : (b))
#define GCUDAI_MESSAGE_BYTES 1024

// Passes a failure up.
#define GCUDAI_TRY(call)                                    \
    do {                                                    \
        const gcuda_status gcudai_try_st = (call);          \
        if (gcudai_try_st != GCUDA_STATUS_SUCCESS) {        \
            return gcudai_try_st;                           \
        }                                                   \
    } while (0)

static GCUDAI_THREAD_LOCAL char gcudai_message[GCUDAI_MESSAGE_BYTES];

// Everything the process shares. A lock, and nothing in it that costs anything to leave behind.
struct gcudai_globals {
    gcudai_mutex lock;
    gcuda_log_callback log;
    enum gcuda_log_level log_level;
    void * log_user;
    struct gcuda_allocator allocator; // alloc NULL: GCUDA_MALLOC and GCUDA_FREE
    gcuda_backend_reg_t * regs;       // third-party registries; the built-in ones are constants
    size_t n_regs, cap_regs;
};
static struct gcudai_globals gcudai_g = { GCUDAI_MUTEX_INIT, NULL, GCUDA_LOG_LEVEL_NONE, NULL, { NULL, NULL, NULL }, NULL, 0, 0 };

int gcuda_version(void) { return GCUDA_VERSION; }

const char * gcuda_status_to_string(gcuda_status status) {
    switch (status) {
        case GCUDA_STATUS_SUCCESS: return "success";
        case GCUDA_STATUS_ABORTED: return "aborted";
        case GCUDA_STATUS_FAILED: return "failed";
        case GCUDA_STATUS_ALLOC_FAILED: return "out of memory";
        case GCUDA_STATUS_INVALID_ARGUMENT: return "invalid argument";
        case GCUDA_STATUS_UNSUPPORTED: return "unsupported";
        case GCUDA_STATUS_INVALID_DATA: return "invalid data";
        case GCUDA_STATUS_DEVICE_LOST: return "device lost";
        case GCUDA_STATUS_IO: return "input/output error";
    }
    return "unknown status";
}

const char * gcuda_last_error(void) { return gcudai_message; }
void gcuda_clear_last_error(void) { gcudai_message[0] = '\0'; }

gcuda_status gcuda_set_last_error(gcuda_status status, const char * message) {
    snprintf(gcudai_message, sizeof(gcudai_message), "%s", message ? message : "");
    return status;
}

// Text for this thread's last error. The arguments may point into the old message.
GCUDAI_PRINTF(2, 3) static gcuda_status gcudai_fail(gcuda_status status, const char * fmt, ...) {
    char text[GCUDAI_MESSAGE_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return gcuda_set_last_error(status, text);
}
#if defined(__clang_analyzer__) // it does not look into variadic functions, and has to see that a failure is no success
#define gcudai_fail(status, ...) (status)
#endif

// Appends to a bounded text; counts what did not fit, as snprintf does.
struct gcudai_text {
    char * text;
    size_t size, used; // used may exceed size
};
GCUDAI_PRINTF(2, 3) static void gcudai_append(struct gcudai_text * t, const char * fmt, ...) {
    char * at = t->used < t->size ? t->text + t->used : NULL;
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(at, at ? t->size - t->used : 0, fmt, args);
    va_end(args);
    t->used += n > 0 ? (size_t) n : 0;
}

void gcuda_log_set(gcuda_log_callback callback, enum gcuda_log_level min_level, void * user_data) {
    gcudai_mutex_lock(&gcudai_g.lock);
    gcudai_g.log = callback;
    gcudai_g.log_level = min_level;
    gcudai_g.log_user = user_data;
    gcudai_mutex_unlock(&gcudai_g.lock);
}

GCUDAI_PRINTF(2, 3) static void gcudai_log(enum gcuda_log_level level, const char * fmt, ...) {
    gcudai_mutex_lock(&gcudai_g.lock);
    if (gcudai_g.log != NULL && level >= gcudai_g.log_level) {
        char text[GCUDAI_MESSAGE_BYTES];
        va_list args;
        va_start(args, fmt);
        vsnprintf(text, sizeof(text), fmt, args);
        va_end(args);
        gcudai_g.log(level, text, gcudai_g.log_user);
    }
    gcudai_mutex_unlock(&gcudai_g.lock);
}

// ---- memory: a header before each block remembers where it came from ----

#ifndef GCUDA_MALLOC
#define GCUDA_MALLOC(size) malloc(size)
#define GCUDA_FREE(ptr) free(ptr)
#endif

#define GCUDAI_ALIGN 64 // a cache line, and the widest vector
struct gcudai_block {
    struct gcuda_allocator from; // alloc NULL: GCUDA_FREE(raw)
    void * raw;
    size_t size; // of raw
};

void gcuda_set_allocator(const struct gcuda_allocator * allocator) {
    gcudai_mutex_lock(&gcudai_g.lock);
    GCUDAI_ZERO(gcudai_g.allocator);
    if (allocator != NULL && allocator->alloc != NULL && allocator->free != NULL) {
        gcudai_g.allocator = *allocator;
    }
    gcudai_mutex_unlock(&gcudai_g.lock);
}

// 64-byte aligned, uninitialised; NULL on failure, with a message.
static void * gcudai_alloc(size_t size) {
    struct gcudai_block b;
    const size_t extra = GCUDAI_ALIGN * 2; // header and slack
    gcudai_mutex_lock(&gcudai_g.lock);
    b.from = gcudai_g.allocator;
    gcudai_mutex_unlock(&gcudai_g.lock);
    b.size = size + extra;
    b.raw = size > SIZE_MAX - extra ? NULL
            : b.from.alloc ? b.from.alloc(b.from.user, b.size, GCUDAI_ALIGN)
                           : GCUDA_MALLOC(b.size);
    if (b.raw == NULL) {
        gcudai_fail(GCUDA_STATUS_ALLOC_FAILED, "out of memory: %llu bytes wanted", (unsigned long long) size);
        return NULL;
    }
    const uintptr_t user = ((uintptr_t) b.raw + extra) & ~(uintptr_t) (GCUDAI_ALIGN - 1);
    memcpy((void *) (user - sizeof(b)), &b, sizeof(b));
    return (void *) user;
}

static void gcudai_free(void * ptr) {
    if (ptr == NULL) {
        return;
    }
    struct gcudai_block b;
    memcpy(&b, (char *) ptr - sizeof(b), sizeof(b));
    if (b.from.alloc) {
        b.from.free(b.from.user, b.raw, b.size);
    } else {
        GCUDA_FREE(b.raw);
    }
}

// =====================================================================================================
// >>impl-math   overflow-checked sizes; half and bfloat16 conversion
// =====================================================================================================

static bool gcudai_mul_size(size_t a, size_t b, size_t * out) {
    if (a != 0 && b > SIZE_MAX / a) {
        return false;
    }
    *out = a * b;
    return true;
}

static bool gcudai_add_size(size_t a, size_t b, size_t * out) {
    if (b > SIZE_MAX - a) {
        return false;
    }
    *out = a + b;
    return true;
}

// For non-negative numbers.
static bool gcudai_mul_i64(int64_t a, int64_t b, int64_t * out) {
    if (a < 0 || b < 0 || (a != 0 && b > INT64_MAX / a)) {
        return false;
    }
    *out = a * b;
    return true;
}

GCUDAI_UNUSED static bool gcudai_add_i64(int64_t a, int64_t b, int64_t * out) {
    if (a < 0 || b < 0 || b > INT64_MAX - a) {
        return false;
    }
    *out = a + b;
    return true;
}

static size_t gcudai_pad(size_t x, size_t align) { return (x + align - 1) & ~(align - 1); } // align: a power of two

static void * gcudai_calloc(size_t n, size_t size) {
    size_t bytes = 0;
    if (!gcudai_mul_size(n, size, &bytes)) {
        gcudai_fail(GCUDA_STATUS_ALLOC_FAILED, "out of memory: %llu times %llu bytes wanted", (unsigned long long) n, (unsigned long long) size);
        return NULL;
    }
    void * ptr = gcudai_alloc(bytes);
    if (ptr != NULL) {
        memset(ptr, 0, bytes);
    }
    return ptr;
}

static uint32_t gcudai_f32_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static float gcudai_bits_f32(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

// Exact. A subnormal is an integer times 2^-24; made that way it survives flush-to-zero modes of the caller.
static float gcudai_fp16_to_fp32(gcuda_fp16_t h) {
    const uint32_t mag = h & 0x7fffu;
    const uint32_t tiny = gcudai_f32_bits((float) (int) mag * (1.0f / 16777216.0f));
    const uint32_t bits = (mag << 13) + (mag < 0x7c00u ? 112u << 23 : 224u << 23);
    return gcudai_bits_f32((mag < 0x0400u ? tiny : bits) | (uint32_t) (h & 0x8000u) << 16);
}

// Nearest, ties to even; 65520 and more become infinite; subnormals are kept; every NaN becomes 0x7e00 with its sign.
static gcuda_fp16_t gcudai_fp32_to_fp16(float f) {
    const uint32_t bits = gcudai_f32_bits(f);
    const uint32_t mag = bits & 0x7fffffffu;
    // one ulp of [0.5, 1) is the smallest F16: the addition itself rounds a small value to a whole number of them
    const uint32_t tiny = gcudai_f32_bits(gcudai_bits_f32(mag) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (mag - (112u << 23) + 0xfffu + ((mag >> 13) & 1u)) >> 13;
    uint32_t h = mag < 0x38800000u ? tiny : normal;
    h = mag < 0x477ff000u ? h : 0x7c00u;
    h = mag > 0x7f800000u ? 0x7e00u : h;
    return (gcuda_fp16_t) (h | (bits >> 16 & 0x8000u));
}

static float gcudai_bf16_to_fp32(gcuda_bf16_t h) { return gcudai_bits_f32((uint32_t) h.bits << 16); }

// Nearest, ties to even; a NaN stays one even if only its lower bits say so.
static gcuda_bf16_t gcudai_fp32_to_bf16(float f) {
    const uint32_t bits = gcudai_f32_bits(f);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    gcuda_bf16_t h;
    h.bits = (uint16_t) ((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16 | 0x40u) : rounded);
    return h;
}

float gcuda_fp16_to_fp32(gcuda_fp16_t x) { return gcudai_fp16_to_fp32(x); }
gcuda_fp16_t gcuda_fp32_to_fp16(float x) { return gcudai_fp32_to_fp16(x); }
float gcuda_bf16_to_fp32(gcuda_bf16_t x) { return gcudai_bf16_to_fp32(x); }
gcuda_bf16_t gcuda_fp32_to_bf16(float x) { return gcudai_fp32_to_bf16(x); }

// The first n elements rounded down to whole vectors; they return how many. A NaN keeps its payload here, the scalar
// form makes the plain one.
#if GCUDAI_HAVE_X86_SIMD
GCUDAI_SIMD_BEGIN
GCUDAI_TARGET_AVX2 static int64_t gcudai_fp16_to_fp32_avx2(const gcuda_fp16_t * x, float * y, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) { _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (x + i)))); }
    return i;
}

GCUDAI_TARGET_AVX2 static int64_t gcudai_fp32_to_fp16_avx2(const float * x, gcuda_fp16_t * y, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) { _mm_storeu_si128((__m128i *) (y + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0)); }
    return i;
}

GCUDAI_TARGET_AVX2 static int64_t gcudai_bf16_to_fp32_avx2(const gcuda_bf16_t * x, float * y, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) (x + i)));
        _mm256_storeu_ps(y + i, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
    }
    return i;
}

GCUDAI_TARGET_AVX2 static int64_t gcudai_fp32_to_bf16_avx2(const float * x, gcuda_bf16_t * y, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        const __m256i bits = _mm256_castps_si256(v), high = _mm256_srli_epi32(bits, 16);
        const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
        const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
        const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
        const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        const __m256i h = _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), quiet, is_nan);
        const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
        _mm_storeu_si128((__m128i *) (y + i), packed);
    }
    return i;
}
GCUDAI_SIMD_END
#define GCUDAI_HALF_ROW(name, x, y, n) \
    (gcudai_cpu_has(GCUDAI_CPU_AVX2 | GCUDAI_CPU_F16C) ? gcudai_##name##_avx2(x, y, n) : 0)
#else
#define GCUDAI_HALF_ROW(name, x, y, n) 0
#endif

void gcuda_fp16_to_fp32_row(const gcuda_fp16_t * x, float * y, int64_t n) {
    for (int64_t i = GCUDAI_HALF_ROW(fp16_to_fp32, x, y, n); i < n; ++i) { y[i] = gcudai_fp16_to_fp32(x[i]); }
}

void gcuda_fp32_to_fp16_row(const float * x, gcuda_fp16_t * y, int64_t n) {
    for (int64_t i = GCUDAI_HALF_ROW(fp32_to_fp16, x, y, n); i < n; ++i) { y[i] = gcudai_fp32_to_fp16(x[i]); }
}

void gcuda_bf16_to_fp32_row(const gcuda_bf16_t * x, float * y, int64_t n) {
    for (int64_t i = GCUDAI_HALF_ROW(bf16_to_fp32, x, y, n); i < n; ++i) { y[i] = gcudai_bf16_to_fp32(x[i]); }
}

void gcuda_fp32_to_bf16_row(const float * x, gcuda_bf16_t * y, int64_t n) {
    for (int64_t i = GCUDAI_HALF_ROW(fp32_to_bf16, x, y, n); i < n; ++i) { y[i] = gcudai_fp32_to_bf16(x[i]); }
}

// =====================================================================================================
// >>impl-quants   block formats: dequantize, quantize, codebooks
// =====================================================================================================
#include <float.h>

// A block is copied to a local before use: the compiler then knows that nothing written to y can change it, and
// vectorises. The products are taken from left to right as quants.md writes them.

// ---- codebooks -------------------------------------------------------------------------------------
// codebooks: written by tests/tools/gen_codebooks.py
// clang-format off
static const int8_t gcudai_kvalues_iq4nl[16] = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
};
static const int8_t gcudai_kvalues_mxfp4[16] = {
    0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12,
};
// 8 digits of 2 bits that stand for 8 25 43
static const uint16_t gcudai_grid_iq2xxs[256] = {
    0x0000,0x0002,0x0005,0x0008,0x000a,0x0011,0x0014,0x0020,0x0022,0x0028,0x002a,0x0041,0x0044,0x0050,0x0058,0x0061,
    0x0064,0x0080,0x0082,0x008a,0x00a2,0x0101,0x0104,0x0110,0x0115,0x0140,0x0184,0x0198,0x0200,0x0202,0x0222,0x0282,
    0x0401,0x0404,0x0410,0x0421,0x0424,0x0440,0x0442,0x0448,0x0460,0x0481,0x0484,0x0490,0x04a4,0x0500,0x0502,0x0508,
    0x0520,0x0546,0x0569,0x0580,0x0591,0x0609,0x0610,0x0640,0x0684,0x06a4,0x0800,0x0805,0x0808,0x0814,0x0828,0x0841,
    0x0844,0x0850,0x0852,0x0888,0x0904,0x0940,0x0a02,0x0a14,0x1001,0x1004,0x1010,0x1021,0x1040,0x1060,0x1084,0x1090,
    0x1095,0x1100,0x1108,0x1120,0x1150,0x115a,0x1180,0x1224,0x1245,0x1400,0x1408,0x1420,0x1425,0x1449,0x1480,0x1518,
    0x1562,0x1600,0x1616,0x1801,0x1804,0x1810,0x1840,0x1881,0x1900,0x1905,0x19a0,0x1a51,0x2000,0x2002,0x200a,0x2044,
    0x2061,0x2080,0x2082,0x2129,0x2148,0x2200,0x2202,0x2401,0x2404,0x2410,0x2440,0x2456,0x2500,0x2541,0x2564,0x2690,
    0x2808,0x2820,0x2894,0x2a44,0x4001,0x4004,0x4010,0x4018,0x4021,0x4024,0x4040,0x4048,0x4056,0x4060,0x4081,0x4084,
    0x4090,0x4100,0x4120,0x4161,0x4180,0x4185,0x4201,0x4210,0x4248,0x4256,0x4268,0x4400,0x4408,0x4420,0x4480,0x4499,
    0x4512,0x4524,0x4600,0x4801,0x4804,0x4810,0x4840,0x4845,0x4900,0x4958,0x4961,0x4982,0x4a45,0x4a90,0x5000,0x5008,
    0x5011,0x5019,0x5020,0x5080,0x5088,0x5104,0x5142,0x51a4,0x5291,0x5490,0x5492,0x550a,0x5601,0x5654,0x5800,0x5811,
    0x5819,0x5864,0x5940,0x5a08,0x6004,0x6010,0x6040,0x6068,0x6100,0x6155,0x6218,0x6260,0x6400,0x6405,0x6510,0x6512,
    0x6584,0x6842,0x8000,0x8002,0x800a,0x8041,0x8082,0x8104,0x8118,0x8140,0x8211,0x8401,0x8404,0x8410,0x8415,0x8440,
    0x8460,0x8500,0x8546,0x8594,0x8609,0x8640,0x8660,0x8802,0x8904,0x8a11,0x9004,0x9010,0x9024,0x9040,0x90a1,0x9116,
    0x9180,0x9245,0x9400,0x9422,0x9444,0x9551,0x9881,0x9920,0xa002,0xa050,0xa085,0xa109,0xa200,0xa418,0xa850,0xa904,
};
// 8 digits of 2 bits that stand for 8 25 43
static const uint16_t gcudai_grid_iq2xs[512] = {
    0x0000,0x0002,0x0005,0x0008,0x000a,0x0011,0x0014,0x0016,0x0019,0x0020,0x0022,0x0025,0x0028,0x0041,0x0044,0x0046,
    0x0049,0x0050,0x0052,0x0055,0x0058,0x0061,0x0064,0x0080,0x0082,0x0085,0x0088,0x0091,0x0094,0x0099,0x00a0,0x0101,
    0x0104,0x0106,0x0109,0x0110,0x0112,0x0115,0x0118,0x011a,0x0121,0x0124,0x0140,0x0142,0x0145,0x0148,0x0151,0x0154,
    0x0160,0x0168,0x0181,0x0184,0x0190,0x0200,0x0202,0x0205,0x0208,0x0211,0x0214,0x0220,0x0241,0x0244,0x0250,0x0255,
    0x0280,0x028a,0x0401,0x0404,0x0406,0x0409,0x0410,0x0412,0x0415,0x0418,0x0421,0x0424,0x0440,0x0442,0x0445,0x0448,
    0x0451,0x0454,0x0456,0x0460,0x0481,0x0484,0x0490,0x0500,0x0502,0x0505,0x0508,0x0511,0x0514,0x0520,0x0541,0x0544,
    0x0550,0x0561,0x0580,0x0601,0x0604,0x0610,0x0626,0x0640,0x0642,0x0684,0x0800,0x0802,0x0805,0x0808,0x080a,0x0811,
    0x0814,0x0820,0x0825,0x0841,0x0844,0x0850,0x0858,0x0880,0x08a0,0x08aa,0x0901,0x0904,0x0910,0x0940,0x0981,0x0989,
    0x0a00,0x0a20,0x0a28,0x0a96,0x0aa0,0x1001,0x1004,0x1006,0x1009,0x1010,0x1012,0x1015,0x1018,0x1021,0x1024,0x1040,
    0x1042,0x1045,0x1048,0x1051,0x1054,0x1060,0x106a,0x1081,0x1084,0x1090,0x1100,0x1102,0x1105,0x1108,0x1111,0x1114,
    0x1120,0x1141,0x1144,0x1150,0x1180,0x1194,0x1196,0x1201,0x1204,0x1206,0x1210,0x1240,0x1260,0x1400,0x1402,0x1405,
    0x1408,0x1411,0x1414,0x1420,0x1441,0x1444,0x1449,0x1450,0x1464,0x1480,0x1501,0x1504,0x1510,0x1540,0x1600,0x1614,
    0x1649,0x1801,0x1804,0x1810,0x1812,0x1840,0x1854,0x1886,0x1900,0x1905,0x1966,0x1a51,0x1aa9,0x2000,0x2002,0x2005,
    0x2008,0x200a,0x2011,0x2014,0x2020,0x2041,0x2044,0x2050,0x2080,0x20a0,0x2101,0x2104,0x2110,0x2140,0x2148,0x2165,
    0x2200,0x2222,0x2280,0x22a8,0x2401,0x2404,0x2410,0x2429,0x2440,0x2500,0x2541,0x2552,0x2599,0x2601,0x261a,0x26a6,
    0x2800,0x2808,0x280a,0x2820,0x2855,0x2888,0x28a2,0x2968,0x2990,0x2a08,0x2a20,0x2a82,0x2a88,0x2a8a,0x4001,0x4004,
    0x4006,0x4009,0x4010,0x4012,0x4015,0x4018,0x4021,0x4024,0x4040,0x4042,0x4045,0x4048,0x404a,0x4051,0x4054,0x4060,
    0x4065,0x4081,0x4084,0x4090,0x4100,0x4102,0x4105,0x4108,0x4111,0x4114,0x4120,0x4141,0x4144,0x4150,0x4180,0x4185,
    0x41a2,0x4201,0x4204,0x4210,0x4212,0x4229,0x4240,0x4400,0x4402,0x4405,0x4408,0x4411,0x4414,0x4419,0x4420,0x4441,
    0x4444,0x4450,0x4480,0x4494,0x4501,0x4504,0x4510,0x4524,0x4540,0x459a,0x4600,0x460a,0x4644,0x4650,0x4801,0x4804,
    0x4810,0x4840,0x4845,0x4854,0x4862,0x4900,0x4911,0x4944,0x4950,0x4969,0x4a04,0x5000,0x5002,0x5005,0x5008,0x5011,
    0x5014,0x5020,0x5028,0x5041,0x5044,0x5050,0x5080,0x5101,0x5104,0x5110,0x5115,0x5140,0x5142,0x5200,0x5244,0x52aa,
    0x5401,0x5404,0x5410,0x5421,0x5440,0x5460,0x5481,0x54a1,0x5500,0x5508,0x5580,0x5588,0x5621,0x5668,0x56a1,0x5800,
    0x5814,0x5841,0x5850,0x5899,0x591a,0x5940,0x5942,0x5a85,0x6001,0x6004,0x6010,0x6040,0x6054,0x6062,0x6086,0x60a9,
    0x6100,0x6224,0x624a,0x6292,0x6400,0x6416,0x6510,0x6540,0x6545,0x65a4,0x6801,0x686a,0x6925,0x6a06,0x6a54,0x6a62,
    0x8000,0x8002,0x8005,0x8008,0x8011,0x8014,0x8020,0x802a,0x8041,0x8044,0x8050,0x8080,0x8082,0x80a8,0x80aa,0x8101,
    0x8104,0x8106,0x8110,0x8140,0x8151,0x8159,0x8200,0x8220,0x8280,0x8282,0x82a0,0x82a8,0x8401,0x8404,0x8410,0x8412,
    0x8415,0x8440,0x8460,0x8489,0x8500,0x8544,0x85a5,0x8618,0x866a,0x8800,0x8808,0x8825,0x885a,0x8880,0x8882,0x88a8,
    0x8906,0x8a22,0x8a80,0x8a88,0x8a96,0x8aa8,0x9001,0x9004,0x9010,0x9040,0x9056,0x9084,0x9100,0x9122,0x9164,0x9256,
    0x9289,0x9400,0x9405,0x9444,0x9450,0x9458,0x9529,0x9590,0x9592,0x9641,0x9851,0x98a6,0x9949,0x9a15,0x9a60,0xa000,
    0xa002,0xa008,0xa00a,0xa020,0xa02a,0xa0a0,0xa151,0xa159,0xa1a6,0xa200,0xa202,0xa208,0xa22a,0xa280,0xa2a0,0xa440,
    0xa495,0xa665,0xa698,0xa80a,0xa820,0xa822,0xa828,0xa8a0,0xa8a8,0xa904,0xa984,0xa986,0xaa28,0xaa2a,0xaa91,0xaaaa,
};
// 8 digits of 2 bits that stand for 8 25 43
static const uint16_t gcudai_grid_iq2s[1024] = {
    0x0000,0x0002,0x0005,0x0008,0x000a,0x0011,0x0014,0x0016,0x0019,0x0020,0x0022,0x0025,0x0028,0x0041,0x0044,0x0046,
    0x0049,0x0050,0x0052,0x0055,0x0058,0x0061,0x0064,0x0066,0x0069,0x0080,0x0082,0x0085,0x0088,0x0091,0x0094,0x00a0,
    0x00a5,0x00aa,0x0101,0x0104,0x0106,0x0109,0x0110,0x0112,0x0115,0x0118,0x0121,0x0124,0x0140,0x0142,0x0145,0x0148,
    0x0151,0x0154,0x0156,0x0159,0x0160,0x0165,0x0168,0x0181,0x0184,0x0190,0x0192,0x0195,0x01a1,0x01a4,0x0200,0x0202,
    0x0205,0x0208,0x0211,0x0214,0x0220,0x022a,0x0241,0x0244,0x0246,0x0249,0x0250,0x0255,0x0280,0x0285,0x028a,0x0294,
    0x02a2,0x0401,0x0404,0x0406,0x0409,0x0410,0x0412,0x0415,0x0418,0x0421,0x0424,0x0426,0x0429,0x0440,0x0442,0x0445,
    0x0448,0x044a,0x0451,0x0454,0x0456,0x0459,0x0460,0x0462,0x0465,0x0481,0x0484,0x0486,0x0489,0x0490,0x0495,0x0498,
    0x04a1,0x04a4,0x0500,0x0502,0x0505,0x0508,0x050a,0x0511,0x0514,0x0516,0x0519,0x0520,0x0525,0x0528,0x0541,0x0544,
    0x0546,0x0549,0x0550,0x0552,0x0555,0x0558,0x0561,0x0564,0x0580,0x0582,0x0585,0x0588,0x0591,0x0594,0x05a0,0x0601,
    0x0604,0x0606,0x0609,0x0610,0x0615,0x0640,0x0645,0x0648,0x0651,0x0654,0x0660,0x0681,0x0684,0x0690,0x0800,0x0802,
    0x0805,0x0808,0x0811,0x0814,0x0816,0x0819,0x0820,0x0825,0x082a,0x0841,0x0844,0x0846,0x0849,0x0850,0x0852,0x0855,
    0x0858,0x0861,0x0864,0x0880,0x0885,0x0894,0x08aa,0x0901,0x0904,0x0910,0x0912,0x0915,0x0918,0x0921,0x0940,0x0945,
    0x0948,0x0951,0x0954,0x0960,0x0981,0x0990,0x0a00,0x0a11,0x0a14,0x0a22,0x0a28,0x0a2a,0x0a50,0x0a99,0x1001,0x1004,
    0x1006,0x1009,0x1010,0x1012,0x1015,0x1018,0x1021,0x1024,0x1026,0x1040,0x1042,0x1045,0x1048,0x1051,0x1054,0x1056,
    0x1059,0x1060,0x1062,0x1065,0x1068,0x1081,0x1084,0x1086,0x1090,0x1095,0x1098,0x10a1,0x10a4,0x1100,0x1102,0x1105,
    0x1108,0x110a,0x1111,0x1114,0x1116,0x1119,0x1120,0x1122,0x1125,0x1128,0x1141,0x1144,0x1146,0x1149,0x1150,0x1152,
    0x1155,0x1158,0x1161,0x1164,0x1180,0x1182,0x1185,0x1188,0x1191,0x1194,0x1201,0x1204,0x1209,0x1210,0x1215,0x1221,
    0x1224,0x1240,0x1245,0x1251,0x1254,0x1281,0x1284,0x1290,0x1400,0x1402,0x1405,0x1408,0x1411,0x1414,0x1416,0x1419,
    0x1420,0x1425,0x1428,0x1441,0x1444,0x1446,0x1449,0x1450,0x1452,0x1455,0x1458,0x1461,0x1464,0x1480,0x1482,0x1485,
    0x1488,0x1491,0x1494,0x14a0,0x1501,0x1504,0x1506,0x1509,0x1510,0x1512,0x1515,0x1518,0x1521,0x1524,0x1540,0x1542,
    0x1545,0x1548,0x1551,0x1554,0x1560,0x1581,0x1584,0x1590,0x1600,0x1605,0x1608,0x1611,0x1614,0x1620,0x1641,0x1644,
    0x1650,0x1680,0x16aa,0x1801,0x1804,0x1806,0x1809,0x1810,0x1815,0x1818,0x1821,0x1840,0x1842,0x1845,0x1848,0x1851,
    0x1854,0x1860,0x1881,0x1884,0x1900,0x1902,0x1905,0x1908,0x1911,0x1914,0x1920,0x1941,0x1944,0x1950,0x1969,0x19a2,
    0x1a04,0x1a10,0x1a40,0x1a56,0x2000,0x2002,0x2005,0x2008,0x2011,0x2014,0x2016,0x2019,0x2020,0x2025,0x202a,0x2041,
    0x2044,0x2050,0x2052,0x2055,0x2064,0x2080,0x208a,0x2094,0x20aa,0x2101,0x2104,0x2110,0x2112,0x2115,0x2121,0x2140,
    0x2142,0x2145,0x2151,0x2154,0x2160,0x2181,0x2184,0x2190,0x2200,0x220a,0x2222,0x2228,0x222a,0x2244,0x2250,0x2288,
    0x228a,0x22a8,0x2401,0x2404,0x2406,0x2409,0x2410,0x2415,0x2418,0x2421,0x2424,0x2440,0x2442,0x2445,0x2448,0x2451,
    0x2454,0x2460,0x2481,0x2484,0x2490,0x2500,0x2505,0x2508,0x2511,0x2514,0x2520,0x2541,0x2544,0x2550,0x2566,0x2580,
    0x2601,0x2604,0x2610,0x2640,0x2659,0x2800,0x2805,0x2811,0x2814,0x2841,0x2844,0x2850,0x288a,0x28aa,0x2901,0x2904,
    0x2910,0x2995,0x2a0a,0x2a22,0x2a64,0x2a88,0x2a8a,0x4001,0x4004,0x4006,0x4009,0x4010,0x4012,0x4015,0x4018,0x401a,
    0x4021,0x4024,0x4026,0x4040,0x4042,0x4045,0x4048,0x404a,0x4051,0x4054,0x4056,0x4059,0x4060,0x4062,0x4065,0x4081,
    0x4084,0x4090,0x4095,0x4098,0x40a1,0x40a4,0x4100,0x4102,0x4105,0x4108,0x4111,0x4114,0x4116,0x4119,0x4120,0x4122,
    0x4125,0x4141,0x4144,0x4146,0x4149,0x4150,0x4152,0x4155,0x4158,0x4161,0x4164,0x4180,0x4182,0x4185,0x4188,0x4191,
    0x4194,0x41a0,0x4201,0x4204,0x4210,0x4212,0x4215,0x4218,0x4224,0x4240,0x4245,0x4248,0x4251,0x4254,0x4260,0x4281,
    0x4284,0x4400,0x4402,0x4405,0x4408,0x440a,0x4411,0x4414,0x4416,0x4419,0x4420,0x4422,0x4425,0x4428,0x4441,0x4444,
    0x4446,0x4449,0x4450,0x4452,0x4455,0x4458,0x4461,0x4464,0x4480,0x4482,0x4485,0x4488,0x4491,0x4494,0x44a0,0x4501,
    0x4504,0x4506,0x4509,0x4510,0x4512,0x4515,0x4518,0x4521,0x4524,0x4540,0x4542,0x4545,0x4548,0x4551,0x4554,0x4560,
    0x456a,0x4581,0x4584,0x4590,0x4600,0x4602,0x4605,0x4608,0x4611,0x4614,0x4620,0x4641,0x4644,0x4650,0x4680,0x46a5,
    0x4801,0x4804,0x4809,0x4810,0x4812,0x4815,0x4818,0x4821,0x4824,0x4840,0x4842,0x4845,0x4848,0x4851,0x4854,0x4860,
    0x4884,0x4890,0x4900,0x4902,0x4905,0x4908,0x4911,0x4914,0x4920,0x4941,0x4944,0x4950,0x4980,0x4996,0x4a01,0x4a04,
    0x4a10,0x4a40,0x5000,0x5002,0x5005,0x5008,0x5011,0x5014,0x5016,0x5019,0x5020,0x5022,0x5025,0x5028,0x5041,0x5044,
    0x5046,0x5049,0x5050,0x5052,0x5055,0x5058,0x5061,0x5064,0x5080,0x5082,0x5085,0x5088,0x5091,0x5094,0x5101,0x5104,
    0x5106,0x5109,0x5110,0x5112,0x5115,0x5118,0x5121,0x5124,0x5140,0x5142,0x5145,0x5148,0x5151,0x5154,0x5160,0x5181,
    0x5184,0x5190,0x5200,0x5205,0x5208,0x5211,0x5214,0x5220,0x5241,0x5244,0x5250,0x5269,0x5280,0x5401,0x5404,0x5406,
    0x5409,0x5410,0x5412,0x5415,0x5418,0x5421,0x5424,0x5440,0x5442,0x5445,0x5448,0x5451,0x5454,0x5460,0x5481,0x5484,
    0x5490,0x5500,0x5502,0x5505,0x5508,0x5511,0x5514,0x5520,0x5541,0x5544,0x5550,0x5580,0x5601,0x5604,0x5610,0x5626,
    0x5640,0x5800,0x5802,0x5805,0x5808,0x5811,0x5814,0x5820,0x5841,0x5844,0x5850,0x585a,0x5880,0x5901,0x5904,0x5910,
    0x5940,0x5a00,0x5a19,0x5a85,0x5aa8,0x6001,0x6004,0x6006,0x6010,0x6012,0x6015,0x6018,0x6021,0x6024,0x6040,0x6045,
    0x6048,0x6051,0x6054,0x6060,0x6084,0x6090,0x6100,0x6102,0x6105,0x6108,0x6111,0x6114,0x6120,0x6141,0x6144,0x6150,
    0x6180,0x6199,0x6204,0x6210,0x6240,0x6256,0x62a1,0x6400,0x6405,0x6408,0x6411,0x6414,0x6420,0x6441,0x6444,0x6450,
    0x6480,0x6501,0x6504,0x6510,0x6540,0x654a,0x6568,0x6592,0x6600,0x6694,0x6801,0x6804,0x6810,0x6865,0x6898,0x6900,
    0x692a,0x6a42,0x6aa1,0x8000,0x8002,0x8005,0x8008,0x8011,0x8014,0x8019,0x8020,0x8025,0x8041,0x8044,0x8050,0x8052,
    0x8055,0x8058,0x8061,0x8080,0x8085,0x8091,0x8094,0x8101,0x8104,0x8109,0x8110,0x8112,0x8115,0x8118,0x8121,0x8124,
    0x8140,0x8142,0x8145,0x8148,0x8151,0x8154,0x8181,0x8184,0x8190,0x81a9,0x8200,0x8205,0x820a,0x8211,0x8214,0x8241,
    0x8244,0x8250,0x8401,0x8404,0x8406,0x8409,0x8410,0x8412,0x8415,0x8418,0x8421,0x8440,0x8442,0x8445,0x8448,0x8451,
    0x8454,0x8460,0x8481,0x8484,0x8490,0x8500,0x8502,0x8505,0x8508,0x8511,0x8514,0x8520,0x8541,0x8544,0x8550,0x8580,
    0x858a,0x8601,0x8604,0x8610,0x8629,0x8640,0x8800,0x8805,0x8811,0x8814,0x8841,0x8844,0x8850,0x88a2,0x8901,0x8904,
    0x8940,0x8965,0x8a22,0x8a58,0x8a5a,0x8a82,0x8aa2,0x9001,0x9004,0x9009,0x9010,0x9012,0x9015,0x9018,0x9024,0x9040,
    0x9042,0x9045,0x9048,0x9051,0x9054,0x9060,0x9081,0x9084,0x9090,0x9100,0x9105,0x9111,0x9114,0x9141,0x9144,0x9150,
    0x915a,0x9201,0x9204,0x9210,0x9240,0x92a6,0x9400,0x9402,0x9405,0x9408,0x9411,0x9414,0x9420,0x9441,0x9444,0x9450,
    0x9480,0x9496,0x9501,0x9504,0x9510,0x9540,0x9598,0x95a1,0x9600,0x9646,0x9664,0x9801,0x9804,0x9810,0x9826,0x9840,
    0x98a9,0x9900,0x9949,0x9952,0x9a90,0xa000,0xa005,0xa00a,0xa014,0xa022,0xa02a,0xa041,0xa044,0xa050,0xa0a2,0xa0aa,
    0xa140,0xa165,0xa202,0xa20a,0xa222,0xa228,0xa22a,0xa282,0xa288,0xa28a,0xa2a8,0xa401,0xa404,0xa410,0xa440,0xa489,
    0xa4a4,0xa500,0xa519,0xa651,0xa80a,0xa828,0xa8a2,0xa954,0xa986,0xaa08,0xaa0a,0xaa20,0xaa22,0xaa28,0xaa88,0xaaaa,
};
// 4 digits of 3 bits that stand for 4 12 20 28 36 44 52 62
static const uint16_t gcudai_grid_iq3xxs[256] = {
    0x0000,0x0002,0x0004,0x0009,0x000b,0x000f,0x0010,0x0012,0x0019,0x0022,0x003b,0x003d,0x0041,0x0043,0x0048,0x004a,
    0x0051,0x0055,0x0058,0x005a,0x0061,0x006c,0x0078,0x0080,0x0082,0x0084,0x0089,0x0090,0x0092,0x0099,0x009b,0x009f,
    0x00a9,0x00af,0x00bd,0x00c1,0x00c7,0x00c8,0x00ca,0x00d5,0x00f8,0x010b,0x011f,0x0124,0x012f,0x013b,0x013d,0x0141,
    0x0147,0x015a,0x016a,0x019d,0x01b4,0x01c8,0x01cc,0x01ce,0x01e3,0x01f1,0x0201,0x0203,0x0208,0x020a,0x0211,0x0213,
    0x0218,0x021a,0x021c,0x0227,0x0228,0x0240,0x0242,0x0249,0x0250,0x0252,0x0281,0x0283,0x0288,0x028a,0x0291,0x0298,
    0x02ba,0x02c0,0x02c2,0x02d0,0x02d9,0x02e6,0x02f6,0x0301,0x0305,0x0328,0x0350,0x0354,0x0366,0x0379,0x0385,0x03d2,
    0x03e0,0x0400,0x0402,0x0409,0x040b,0x0410,0x0412,0x0416,0x0419,0x0422,0x0441,0x0443,0x0445,0x0448,0x044a,0x0451,
    0x0458,0x0473,0x0477,0x0478,0x0480,0x0482,0x0489,0x048f,0x0490,0x0492,0x049f,0x04a0,0x04ad,0x04c1,0x04c8,0x04cc,
    0x04f8,0x04fc,0x051d,0x052b,0x0543,0x0557,0x0561,0x057c,0x05c1,0x05c3,0x05ce,0x05e5,0x0601,0x0608,0x060a,0x0611,
    0x0613,0x0628,0x0635,0x063a,0x0640,0x0642,0x0650,0x0659,0x0664,0x0666,0x0681,0x0683,0x0688,0x0695,0x06aa,0x06ba,
    0x06c9,0x06db,0x0718,0x0727,0x073a,0x0740,0x0746,0x0752,0x076d,0x078c,0x079e,0x07b3,0x07db,0x07f0,0x0804,0x080f,
    0x081d,0x081f,0x082b,0x082f,0x087c,0x0890,0x089f,0x08a0,0x08b0,0x08b6,0x08c7,0x08e5,0x0904,0x0929,0x0934,0x0955,
    0x0963,0x0978,0x09c5,0x09c8,0x09ca,0x09d8,0x0a0a,0x0a21,0x0a38,0x0a40,0x0a46,0x0a56,0x0a6d,0x0a8c,0x0a9a,0x0aba,
    0x0ac2,0x0aeb,0x0b08,0x0b13,0x0b17,0x0b3a,0x0b42,0x0b59,0x0ba8,0x0bd4,0x0be2,0x0c14,0x0c24,0x0c26,0x0c34,0x0c51,
    0x0c71,0x0c8f,0x0cb4,0x0cd8,0x0cde,0x0d24,0x0d45,0x0d6a,0x0d9b,0x0dc3,0x0dd1,0x0e03,0x0e05,0x0e07,0x0e08,0x0e1a,
    0x0e2a,0x0e56,0x0e60,0x0e8a,0x0ea5,0x0eaa,0x0ec0,0x0ecd,0x0edb,0x0ef0,0x0f11,0x0f21,0x0f40,0x0f42,0x0f54,0x0f98,
};
// 4 digits of 3 bits that stand for 1 3 5 7 9 11 13 15
static const uint16_t gcudai_grid_iq3s[512] = {
    0x0000,0x0001,0x0002,0x0005,0x0007,0x0008,0x0009,0x000a,0x000c,0x000e,0x0010,0x0011,0x0015,0x001b,0x0020,0x0022,
    0x0025,0x0027,0x0029,0x002b,0x0030,0x0032,0x0039,0x003c,0x003f,0x0040,0x0041,0x0042,0x0044,0x0048,0x0049,0x004d,
    0x0050,0x0053,0x0057,0x0059,0x005d,0x0064,0x0071,0x0075,0x007a,0x0080,0x0081,0x0085,0x0087,0x0088,0x008b,0x008e,
    0x0091,0x0095,0x0098,0x009c,0x00a2,0x00a5,0x00a7,0x00a9,0x00ab,0x00b8,0x00bb,0x00c3,0x00c9,0x00cd,0x00d0,0x00d2,
    0x00d9,0x00db,0x00de,0x00e4,0x00e8,0x00ea,0x00f7,0x00f9,0x00fd,0x0100,0x010b,0x010f,0x0111,0x0114,0x011a,0x0120,
    0x0123,0x0129,0x0138,0x0142,0x0144,0x0150,0x0152,0x0156,0x015b,0x0161,0x0165,0x0167,0x0176,0x017b,0x0186,0x0189,
    0x018b,0x0199,0x01aa,0x01b9,0x01c0,0x01c2,0x01c4,0x01d0,0x01d2,0x01d6,0x01db,0x01e8,0x01ec,0x0200,0x0201,0x0202,
    0x0204,0x0208,0x0209,0x020b,0x020d,0x020f,0x0210,0x0212,0x0219,0x021c,0x021e,0x022c,0x022e,0x0231,0x023a,0x0240,
    0x0241,0x0243,0x0246,0x0248,0x024c,0x0251,0x0258,0x025b,0x0261,0x0268,0x026a,0x0278,0x027e,0x0280,0x028a,0x028d,
    0x028f,0x0290,0x0294,0x029a,0x02a0,0x02a3,0x02ad,0x02b0,0x02ba,0x02c1,0x02c4,0x02c7,0x02c8,0x02cb,0x02d1,0x02d7,
    0x02d8,0x02dc,0x02e1,0x02f2,0x02f8,0x0303,0x0305,0x030a,0x030c,0x0319,0x031b,0x0322,0x0326,0x0328,0x032c,0x0341,
    0x0348,0x034b,0x0351,0x0358,0x035a,0x0369,0x0390,0x0394,0x0397,0x03a4,0x03a6,0x03c1,0x03c3,0x03c8,0x03ca,0x03d1,
    0x03dd,0x03e1,0x03f2,0x03f8,0x0400,0x0401,0x0403,0x0405,0x0407,0x0408,0x040a,0x040c,0x040e,0x0411,0x0413,0x0417,
    0x0418,0x041a,0x0421,0x0423,0x0425,0x0428,0x042a,0x0437,0x0438,0x043b,0x043d,0x0440,0x0442,0x0448,0x044b,0x044f,
    0x0452,0x0455,0x0459,0x045c,0x0462,0x0469,0x0481,0x0484,0x0487,0x0491,0x0493,0x0498,0x049f,0x04a1,0x04ab,0x04af,
    0x04b9,0x04bc,0x04c0,0x04c2,0x04c5,0x04c9,0x04d2,0x04d4,0x04d9,0x04db,0x04e2,0x04e8,0x04f6,0x0501,0x0507,0x0510,
    0x0513,0x051a,0x051d,0x0521,0x053a,0x053d,0x0544,0x0549,0x0552,0x055f,0x0560,0x056b,0x0578,0x0580,0x0582,0x0587,
    0x0591,0x05ad,0x05b1,0x05c5,0x05c9,0x05d6,0x05d8,0x05e3,0x05e8,0x0602,0x0609,0x060b,0x060d,0x060f,0x0612,0x0619,
    0x061b,0x061d,0x0622,0x0624,0x0627,0x0629,0x0633,0x0639,0x0641,0x0643,0x0645,0x064c,0x0651,0x0653,0x0660,0x0670,
    0x067a,0x067e,0x0680,0x068a,0x0690,0x069a,0x069c,0x06a8,0x06c1,0x06c8,0x06cc,0x06d1,0x06d3,0x06d7,0x06d8,0x06e1,
    0x06e3,0x06e7,0x06ed,0x06fb,0x0703,0x0709,0x070e,0x0712,0x0719,0x072a,0x0730,0x0734,0x0741,0x0748,0x074a,0x0755,
    0x075a,0x0764,0x076e,0x077b,0x078e,0x07a1,0x07c1,0x07c3,0x07d0,0x07d2,0x07dd,0x0800,0x0804,0x080a,0x0810,0x0814,
    0x0817,0x081a,0x0821,0x0828,0x0838,0x0842,0x0847,0x0849,0x084b,0x0852,0x0858,0x085d,0x0863,0x0869,0x086d,0x0881,
    0x0883,0x0888,0x088d,0x0891,0x089b,0x08a0,0x08af,0x08b2,0x08b8,0x08c4,0x08c9,0x08cb,0x08d0,0x08d2,0x08d9,0x08dd,
    0x0900,0x0902,0x0914,0x091f,0x0920,0x0939,0x0945,0x0947,0x0951,0x0972,0x098b,0x099c,0x09b0,0x09c8,0x09cd,0x09d8,
    0x09e3,0x09e9,0x0a02,0x0a08,0x0a0c,0x0a12,0x0a20,0x0a24,0x0a27,0x0a2a,0x0a36,0x0a3c,0x0a41,0x0a43,0x0a45,0x0a4a,
    0x0a51,0x0a5a,0x0a7a,0x0a80,0x0a89,0x0a93,0x0a98,0x0a9e,0x0aab,0x0ac2,0x0ac7,0x0ac8,0x0ad7,0x0ae4,0x0ae9,0x0af5,
    0x0afb,0x0b01,0x0b04,0x0b10,0x0b1a,0x0b26,0x0b4a,0x0b56,0x0b69,0x0b6b,0x0ba2,0x0bc2,0x0bc4,0x0bd2,0x0c09,0x0c0b,
    0x0c0d,0x0c19,0x0c1b,0x0c30,0x0c40,0x0c50,0x0c57,0x0c74,0x0c8a,0x0c9c,0x0ca2,0x0cad,0x0cb2,0x0cb8,0x0cc0,0x0ccc,
    0x0cd1,0x0ce0,0x0d15,0x0d23,0x0d32,0x0d40,0x0d43,0x0d5c,0x0d70,0x0d85,0x0da0,0x0dc9,0x0dcb,0x0e00,0x0e04,0x0e07,
    0x0e10,0x0e12,0x0e1e,0x0e20,0x0e2c,0x0e32,0x0e42,0x0e49,0x0e54,0x0e63,0x0e65,0x0e81,0x0e84,0x0e88,0x0e8e,0x0e91,
    0x0e98,0x0ea9,0x0ec2,0x0eda,0x0edd,0x0eeb,0x0f01,0x0f05,0x0f0b,0x0f10,0x0f28,0x0f52,0x0f62,0x0f82,0x0f99,0x0fc0,
};
// 8 digits of 2 bits that stand for -1 0 1
static const uint16_t gcudai_grid_iq1s[2048] = {
    0x0000,0x0002,0x0005,0x0008,0x000a,0x0011,0x0015,0x0020,0x0022,0x0028,0x002a,0x0045,0x0051,0x0054,0x0056,0x0065,
    0x0080,0x0082,0x0088,0x008a,0x0095,0x00a0,0x00a2,0x00a8,0x00aa,0x0104,0x0105,0x0111,0x0114,0x0116,0x0119,0x011a,
    0x0125,0x0141,0x0146,0x0149,0x0152,0x0155,0x015a,0x0161,0x0164,0x0166,0x0168,0x0185,0x0191,0x0194,0x0196,0x01a5,
    0x0200,0x0202,0x0208,0x020a,0x0215,0x0220,0x0222,0x0228,0x022a,0x0245,0x0251,0x0259,0x0264,0x0269,0x0280,0x0282,
    0x0288,0x028a,0x0291,0x0295,0x0299,0x02a0,0x02a2,0x02a8,0x02aa,0x0411,0x0414,0x0416,0x0425,0x0441,0x0449,0x0455,
    0x045a,0x0464,0x0465,0x0491,0x0499,0x04a5,0x0501,0x0504,0x0505,0x0506,0x0515,0x0518,0x051a,0x0529,0x0540,0x0545,
    0x054a,0x0550,0x0551,0x0554,0x0555,0x0556,0x0559,0x0560,0x0562,0x0565,0x0568,0x056a,0x0581,0x0591,0x0595,0x0598,
    0x059a,0x05a1,0x05a4,0x05a5,0x05a6,0x05a9,0x0614,0x0619,0x0641,0x0644,0x0650,0x0652,0x0655,0x0658,0x0660,0x0661,
    0x0666,0x0669,0x0685,0x0691,0x0694,0x0699,0x0800,0x0802,0x0808,0x080a,0x0815,0x0820,0x0822,0x0828,0x082a,0x0845,
    0x0851,0x0856,0x0865,0x0880,0x0882,0x0888,0x088a,0x0895,0x08a0,0x08a2,0x08a8,0x08aa,0x0905,0x0911,0x0914,0x0919,
    0x0924,0x0925,0x0941,0x0950,0x0951,0x0955,0x0961,0x0964,0x0969,0x0991,0x0994,0x0996,0x0999,0x09a5,0x0a00,0x0a02,
    0x0a08,0x0a0a,0x0a15,0x0a20,0x0a22,0x0a28,0x0a2a,0x0a45,0x0a51,0x0a59,0x0a61,0x0a65,0x0a80,0x0a82,0x0a85,0x0a88,
    0x0a8a,0x0a95,0x0aa0,0x0aa2,0x0aa8,0x0aaa,0x1010,0x1011,0x1014,0x1019,0x1024,0x1025,0x1041,0x1044,0x1050,0x1055,
    0x1058,0x1061,0x1064,0x1065,0x1069,0x1091,0x1094,0x1096,0x10a1,0x10a5,0x1101,0x1104,0x1106,0x1109,0x1110,0x1112,
    0x1115,0x1118,0x1121,0x1124,0x1129,0x1145,0x114a,0x1150,0x1151,0x1152,0x1154,0x1155,0x1156,0x1159,0x1160,0x1165,
    0x1184,0x1192,0x1195,0x11a1,0x11a4,0x1211,0x1214,0x1216,0x1225,0x1240,0x1246,0x1249,0x1252,0x1255,0x1258,0x125a,
    0x1264,0x1266,0x1285,0x1291,0x1294,0x1296,0x12a5,0x1401,0x1406,0x1409,0x1414,0x1415,0x1418,0x1419,0x1421,0x1426,
    0x1441,0x1445,0x1446,0x1448,0x144a,0x1451,0x1454,0x1455,0x1456,0x1459,0x1462,0x1465,0x1468,0x1484,0x1489,0x1490,
    0x1494,0x1495,0x1498,0x1499,0x149a,0x14a1,0x14a4,0x14a5,0x14a9,0x1502,0x1505,0x150a,0x1511,0x1514,0x1515,0x1516,
    0x1519,0x1520,0x1522,0x1525,0x1528,0x152a,0x1541,0x1544,0x1545,0x1546,0x1551,0x1552,0x1554,0x1555,0x1556,0x1559,
    0x155a,0x1561,0x1564,0x1565,0x1566,0x1569,0x1580,0x1582,0x1584,0x1585,0x1588,0x158a,0x1590,0x1591,0x1594,0x1595,
    0x1596,0x1599,0x159a,0x15a0,0x15a2,0x15a5,0x1601,0x1604,0x1605,0x1606,0x1615,0x1616,0x1618,0x161a,0x1621,0x1626,
    0x1640,0x1642,0x1644,0x1645,0x1648,0x164a,0x1651,0x1655,0x1656,0x1658,0x1659,0x1661,0x1664,0x1665,0x1668,0x1669,
    0x166a,0x1686,0x168a,0x1692,0x1695,0x16a4,0x16a9,0x1811,0x1816,0x1825,0x1841,0x1844,0x1846,0x1849,0x1850,0x1855,
    0x1858,0x185a,0x1860,0x1861,0x1864,0x1866,0x1869,0x1885,0x1891,0x1894,0x18a5,0x1910,0x1912,0x1915,0x191a,0x1921,
    0x1925,0x1942,0x1944,0x1945,0x1948,0x1951,0x1954,0x1955,0x1956,0x1959,0x195a,0x1960,0x1965,0x196a,0x1989,0x1991,
    0x1992,0x1995,0x1998,0x19a1,0x19a6,0x19a9,0x1a09,0x1a16,0x1a24,0x1a26,0x1a44,0x1a46,0x1a49,0x1a50,0x1a52,0x1a55,
    0x1a58,0x1a61,0x1a66,0x1a69,0x1a85,0x1a91,0x1a96,0x1a9a,0x2000,0x2002,0x2008,0x200a,0x2015,0x2020,0x2022,0x2025,
    0x2028,0x202a,0x2045,0x2051,0x2059,0x2061,0x2065,0x2080,0x2082,0x2088,0x208a,0x2095,0x20a0,0x20a2,0x20a5,0x20a8,
    0x20aa,0x2105,0x2111,0x2114,0x2119,0x2125,0x2142,0x2144,0x2149,0x2155,0x2158,0x215a,0x2161,0x2164,0x2165,0x2166,
    0x2185,0x2190,0x2196,0x2199,0x21a5,0x2201,0x2208,0x220a,0x2211,0x2215,0x2220,0x2222,0x2228,0x222a,0x2245,0x2251,
    0x2256,0x2259,0x2265,0x2281,0x2288,0x228a,0x2291,0x2295,0x22a0,0x22a2,0x22a8,0x22aa,0x2405,0x2414,0x2416,0x2419,
    0x2425,0x2444,0x2445,0x2446,0x2449,0x2452,0x2455,0x2458,0x245a,0x2466,0x2485,0x2491,0x2494,0x2499,0x24a1,0x24a5,
    0x2509,0x2515,0x2521,0x2529,0x2540,0x2545,0x2548,0x2551,0x2554,0x2555,0x2559,0x2562,0x2565,0x2568,0x2589,0x2590,
    0x2594,0x2595,0x2598,0x259a,0x25a1,0x25a4,0x25a6,0x25a9,0x2605,0x2610,0x2612,0x2619,0x2625,0x2641,0x2649,0x2655,
    0x2660,0x2661,0x2669,0x2684,0x2686,0x2690,0x269a,0x2800,0x2802,0x2808,0x280a,0x2815,0x2820,0x2822,0x2828,0x282a,
    0x2845,0x2851,0x2854,0x2865,0x2880,0x2882,0x2888,0x288a,0x28a0,0x28a2,0x28a8,0x28aa,0x2909,0x2911,0x2914,0x2919,
    0x2925,0x2946,0x2949,0x2952,0x2955,0x2961,0x2964,0x2966,0x2969,0x2985,0x2990,0x2996,0x2999,0x29a4,0x29a5,0x2a00,
    0x2a02,0x2a08,0x2a0a,0x2a20,0x2a22,0x2a28,0x2a2a,0x2a45,0x2a51,0x2a56,0x2a59,0x2a65,0x2a80,0x2a82,0x2a88,0x2a8a,
    0x2a95,0x2aa0,0x2aa2,0x2aa8,0x2aaa,0x4005,0x4011,0x4016,0x4025,0x4049,0x4052,0x4055,0x4058,0x405a,0x4061,0x4064,
    0x4066,0x4094,0x4099,0x40a1,0x40a6,0x4100,0x4101,0x4104,0x4106,0x4109,0x4112,0x4115,0x4116,0x4118,0x411a,0x4121,
    0x4126,0x4129,0x4145,0x4148,0x414a,0x4151,0x4154,0x4155,0x4156,0x4159,0x415a,0x4165,0x4168,0x416a,0x4181,0x4184,
    0x4186,0x4190,0x4192,0x4195,0x41a0,0x41a1,0x41a2,0x4205,0x4211,0x4214,0x4216,0x4225,0x4241,0x4252,0x4255,0x425a,
    0x4264,0x4269,0x4289,0x4294,0x42a5,0x4401,0x4415,0x4419,0x4429,0x4445,0x4448,0x444a,0x4451,0x4454,0x4455,0x4456,
    0x4461,0x4462,0x4465,0x4468,0x446a,0x4481,0x4486,0x4489,0x4490,0x4492,0x4495,0x44a0,0x44a1,0x44a9,0x4501,0x4502,
    0x4505,0x450a,0x4511,0x4514,0x4515,0x4516,0x4519,0x4520,0x4525,0x452a,0x4541,0x4544,0x4545,0x4546,0x4549,0x4550,
    0x4551,0x4554,0x4555,0x4556,0x4558,0x4559,0x4561,0x4564,0x4565,0x4566,0x4569,0x4582,0x4584,0x4585,0x4588,0x4591,
    0x4594,0x4595,0x4596,0x4599,0x459a,0x45a5,0x45a8,0x45aa,0x4601,0x4605,0x4609,0x4614,0x4615,0x4618,0x461a,0x4621,
    0x4624,0x4629,0x4640,0x4642,0x4645,0x4648,0x4650,0x4651,0x4652,0x4655,0x4656,0x4659,0x4662,0x4665,0x4668,0x4681,
    0x4685,0x468a,0x4694,0x4695,0x46a1,0x46a4,0x46a6,0x4805,0x4811,0x4815,0x481a,0x4825,0x4842,0x4849,0x4850,0x4855,
    0x4858,0x4861,0x4864,0x4866,0x4869,0x4885,0x4891,0x4894,0x4896,0x4899,0x48a5,0x4901,0x4905,0x4906,0x490a,0x4910,
    0x4914,0x4915,0x4918,0x4921,0x4924,0x4926,0x4940,0x4945,0x494a,0x4951,0x4952,0x4954,0x4955,0x4956,0x4959,0x4960,
    0x4962,0x4965,0x4966,0x496a,0x4986,0x4989,0x4992,0x4995,0x4996,0x4998,0x49a1,0x49a4,0x49a6,0x49a9,0x4a16,0x4a44,
    0x4a46,0x4a49,0x4a55,0x4a58,0x4a5a,0x4a64,0x4a69,0x4a94,0x4aa5,0x5001,0x5004,0x5005,0x5006,0x5009,0x5012,0x5015,
    0x501a,0x5021,0x5024,0x5029,0x5040,0x5045,0x5048,0x5051,0x5054,0x5055,0x5056,0x5059,0x5065,0x5068,0x5086,0x5089,
    0x5095,0x5098,0x50a0,0x50a1,0x50a6,0x50a9,0x5105,0x5108,0x5109,0x510a,0x5111,0x5114,0x5115,0x5116,0x5118,0x5119,
    0x5120,0x5125,0x5126,0x5128,0x512a,0x5141,0x5144,0x5145,0x5146,0x5149,0x5150,0x5151,0x5152,0x5154,0x5155,0x5156,
    0x5158,0x5159,0x515a,0x5161,0x5164,0x5165,0x5166,0x5169,0x5182,0x5185,0x5191,0x5194,0x5195,0x5196,0x5199,0x51a0,
    0x51a5,0x51aa,0x5201,0x5206,0x5212,0x5215,0x521a,0x5221,0x5224,0x5242,0x5245,0x524a,0x5251,0x5254,0x5255,0x5256,
    0x5259,0x5262,0x5265,0x5285,0x5290,0x5292,0x5295,0x5299,0x529a,0x52a4,0x5404,0x5405,0x5411,0x5414,0x5415,0x5416,
    0x5418,0x5419,0x5421,0x5425,0x5428,0x542a,0x5441,0x5444,0x5445,0x5446,0x5449,0x544a,0x5450,0x5451,0x5454,0x5455,
    0x5456,0x5458,0x5459,0x545a,0x5461,0x5462,0x5464,0x5465,0x5466,0x5469,0x5480,0x5488,0x548a,0x5491,0x5494,0x5495,
    0x5496,0x5499,0x54a1,0x54a4,0x54a5,0x54aa,0x5501,0x5502,0x5504,0x5505,0x5506,0x5509,0x5510,0x5511,0x5512,0x5514,
    0x5515,0x5516,0x5519,0x551a,0x5521,0x5524,0x5525,0x5526,0x5529,0x5540,0x5541,0x5542,0x5544,0x5545,0x5546,0x5548,
    0x5549,0x5550,0x5551,0x5552,0x5554,0x5555,0x5556,0x5558,0x5559,0x555a,0x5560,0x5561,0x5564,0x5565,0x5566,0x5568,
    0x5569,0x556a,0x5581,0x5584,0x5585,0x5589,0x558a,0x5590,0x5591,0x5594,0x5595,0x5596,0x5598,0x5599,0x55a1,0x55a4,
    0x55a5,0x55a6,0x55a9,0x5600,0x5601,0x5602,0x5604,0x5606,0x5608,0x5609,0x5611,0x5614,0x5615,0x5618,0x5619,0x5620,
    0x5621,0x5622,0x5624,0x5625,0x5626,0x5628,0x5629,0x5641,0x5645,0x5646,0x5648,0x5649,0x564a,0x5650,0x5651,0x5652,
    0x5654,0x5655,0x5656,0x5658,0x5659,0x565a,0x5661,0x5664,0x5665,0x5669,0x5682,0x5685,0x5686,0x5688,0x5689,0x568a,
    0x5691,0x5695,0x569a,0x56a2,0x56a5,0x56a6,0x56a8,0x56a9,0x5804,0x5805,0x5806,0x5809,0x5810,0x5815,0x5818,0x5821,
    0x582a,0x5845,0x5848,0x584a,0x5851,0x5854,0x5855,0x5856,0x5858,0x5859,0x5860,0x5862,0x5864,0x5865,0x5882,0x5889,
    0x5890,0x5892,0x5895,0x5898,0x58a1,0x58a9,0x5901,0x5902,0x5905,0x590a,0x5911,0x5914,0x5915,0x5916,0x5919,0x5925,
    0x5941,0x5944,0x5945,0x5946,0x5949,0x5950,0x5951,0x5952,0x5954,0x5955,0x5956,0x5958,0x5959,0x595a,0x5961,0x5964,
    0x5965,0x5966,0x5969,0x5981,0x5985,0x5989,0x5991,0x5994,0x5995,0x5996,0x5998,0x5999,0x59a5,0x5a04,0x5a08,0x5a15,
    0x5a1a,0x5a20,0x5a25,0x5a26,0x5a29,0x5a45,0x5a48,0x5a49,0x5a51,0x5a55,0x5a56,0x5a58,0x5a59,0x5a62,0x5a65,0x5a68,
    0x5a6a,0x5a81,0x5a8a,0x5a92,0x5a95,0x5a96,0x5a98,0x5a9a,0x5aa1,0x6005,0x6014,0x6016,0x6019,0x6025,0x6044,0x6050,
    0x6055,0x6056,0x6058,0x605a,0x6061,0x6064,0x6066,0x6069,0x6081,0x6096,0x60a5,0x6101,0x6104,0x6106,0x6109,0x6112,
    0x6115,0x6121,0x6122,0x6126,0x6129,0x6145,0x6149,0x6151,0x6155,0x6156,0x6159,0x6165,0x6166,0x616a,0x6184,0x618a,
    0x6192,0x6195,0x61a1,0x61a6,0x61a9,0x6211,0x6216,0x6219,0x6240,0x6241,0x6246,0x6255,0x6256,0x6258,0x6260,0x6285,
    0x6291,0x6296,0x62a5,0x6411,0x6412,0x6415,0x6416,0x641a,0x6421,0x6426,0x6429,0x6440,0x6442,0x6445,0x6448,0x644a,
    0x6451,0x6454,0x6455,0x6456,0x6459,0x645a,0x6460,0x6462,0x6465,0x6484,0x6485,0x6489,0x6490,0x6492,0x6494,0x6495,
    0x6496,0x6498,0x649a,0x64a1,0x64a4,0x64a9,0x6505,0x6508,0x650a,0x6511,0x6515,0x6516,0x6519,0x6544,0x6545,0x6546,
    0x6549,0x6550,0x6551,0x6554,0x6555,0x6556,0x6559,0x6561,0x6564,0x6565,0x6566,0x6569,0x6586,0x6589,0x658a,0x6591,
    0x6595,0x6596,0x6599,0x659a,0x65a2,0x65a5,0x65a6,0x65a8,0x6602,0x6609,0x6615,0x6620,0x6626,0x6628,0x6629,0x6640,
    0x6645,0x6648,0x664a,0x6651,0x6654,0x6655,0x6656,0x6658,0x665a,0x6660,0x6665,0x6668,0x6680,0x6682,0x6685,0x668a,
    0x6694,0x6696,0x6698,0x6699,0x66a0,0x66a4,0x66a6,0x66aa,0x6816,0x6819,0x6825,0x6841,0x6852,0x6855,0x685a,0x6861,
    0x6869,0x6885,0x6891,0x6898,0x68a6,0x6901,0x6904,0x6910,0x6915,0x6921,0x6924,0x6926,0x6929,0x6940,0x6941,0x6945,
    0x6946,0x6948,0x6951,0x6954,0x6955,0x6956,0x6959,0x6960,0x6965,0x696a,0x6982,0x6984,0x698a,0x6995,0x69a1,0x69a4,
    0x69a5,0x69a9,0x6a11,0x6a16,0x6a18,0x6a41,0x6a44,0x6a49,0x6a50,0x6a55,0x6a58,0x6a5a,0x6a64,0x6a65,0x6a69,0x6a86,
    0x6a94,0x6a98,0x6a9a,0x6aa6,0x8000,0x8002,0x8008,0x800a,0x8020,0x8022,0x8028,0x802a,0x8045,0x8050,0x8051,0x8054,
    0x8056,0x8059,0x8065,0x8080,0x8082,0x8088,0x808a,0x8095,0x80a0,0x80a2,0x80a8,0x80aa,0x8105,0x8111,0x8114,0x8116,
    0x8119,0x8125,0x8141,0x8144,0x8149,0x8150,0x8152,0x8155,0x8156,0x8158,0x8159,0x8164,0x8166,0x8169,0x8185,0x8189,
    0x8194,0x8196,0x8199,0x81a5,0x8200,0x8202,0x8208,0x820a,0x8215,0x8220,0x8222,0x8228,0x822a,0x8251,0x8254,0x8259,
    0x8265,0x8280,0x8282,0x8288,0x828a,0x8295,0x82a0,0x82a2,0x82a8,0x82aa,0x8414,0x8419,0x8441,0x8444,0x8451,0x8455,
    0x845a,0x8461,0x8464,0x8469,0x8494,0x8499,0x8501,0x8509,0x8512,0x8515,0x851a,0x8526,0x8529,0x8540,0x8541,0x8545,
    0x8548,0x8551,0x8554,0x8555,0x8556,0x8559,0x855a,0x8565,0x8566,0x8568,0x856a,0x8581,0x8584,0x8586,0x8589,0x8590,
    0x8592,0x8595,0x8598,0x85a6,0x8611,0x8616,0x8619,0x8625,0x8641,0x8644,0x8649,0x864a,0x8650,0x8655,0x8659,0x865a,
    0x8661,0x8666,0x866a,0x8685,0x8691,0x869a,0x86a4,0x8800,0x8802,0x8808,0x880a,0x8815,0x8820,0x8822,0x8828,0x882a,
    0x8841,0x8845,0x8851,0x8854,0x8859,0x8865,0x8869,0x8880,0x8882,0x8888,0x888a,0x8895,0x88a0,0x88a2,0x88a8,0x88aa,
    0x8905,0x8906,0x8911,0x8914,0x8916,0x8925,0x8941,0x8944,0x8946,0x8949,0x8950,0x8952,0x8955,0x895a,0x8961,0x8964,
    0x8985,0x8996,0x8999,0x89a5,0x8a00,0x8a02,0x8a08,0x8a0a,0x8a15,0x8a20,0x8a22,0x8a28,0x8a2a,0x8a45,0x8a51,0x8a54,
    0x8a56,0x8a80,0x8a82,0x8a88,0x8a8a,0x8a95,0x8aa0,0x8aa2,0x8aa8,0x8aaa,0x9005,0x9011,0x9016,0x9018,0x9019,0x9025,
    0x9041,0x9046,0x9049,0x9055,0x9058,0x905a,0x9069,0x906a,0x9085,0x9091,0x9094,0x9096,0x9099,0x90a5,0x9101,0x9104,
    0x9106,0x9109,0x9110,0x9115,0x9118,0x911a,0x9121,0x9124,0x9126,0x9129,0x9140,0x9145,0x9150,0x9151,0x9154,0x9155,
    0x9156,0x9159,0x9162,0x9165,0x9184,0x9186,0x9192,0x9195,0x9198,0x91a1,0x91a4,0x91a6,0x91a9,0x9205,0x9211,0x9214,
    0x9219,0x9225,0x9244,0x9246,0x9249,0x9250,0x9252,0x9255,0x9258,0x9266,0x9269,0x9285,0x9294,0x9296,0x92a9,0x9401,
    0x9404,0x9406,0x9410,0x9415,0x9418,0x9426,0x9440,0x944a,0x9451,0x9454,0x9455,0x9456,0x9458,0x9459,0x9460,0x9461,
    0x9462,0x9465,0x9484,0x9486,0x9492,0x9494,0x9495,0x9498,0x94a1,0x94a9,0x9500,0x9505,0x9508,0x950a,0x9510,0x9511,
    0x9514,0x9515,0x9516,0x9519,0x9521,0x9525,0x9529,0x952a,0x9541,0x9544,0x9545,0x9546,0x9549,0x9550,0x9551,0x9552,
    0x9554,0x9555,0x9556,0x9558,0x9559,0x955a,0x9561,0x9564,0x9565,0x9566,0x9569,0x9581,0x9585,0x9588,0x9591,0x9592,
    0x9594,0x9595,0x9596,0x9599,0x959a,0x95a0,0x95a2,0x95a5,0x95a8,0x95aa,0x9601,0x9604,0x9610,0x9615,0x9619,0x9620,
    0x9626,0x9629,0x9645,0x9648,0x9649,0x9651,0x9652,0x9655,0x9656,0x9659,0x9665,0x9668,0x9682,0x9684,0x9689,0x968a,
    0x9692,0x9694,0x9695,0x96a4,0x96a6,0x96a9,0x9805,0x9816,0x9819,0x9825,0x9841,0x9846,0x9850,0x9852,0x9855,0x9856,
    0x985a,0x9864,0x9865,0x9885,0x9891,0x9896,0x9899,0x98a5,0x9904,0x9906,0x9909,0x9910,0x9912,0x9915,0x9918,0x991a,
    0x9920,0x9921,0x9924,0x9926,0x9940,0x9942,0x9945,0x9948,0x994a,0x9951,0x9954,0x9955,0x9956,0x9959,0x9962,0x9965,
    0x9966,0x996a,0x9981,0x9984,0x9990,0x9992,0x9995,0x999a,0x99a1,0x99a6,0x9a05,0x9a15,0x9a25,0x9a44,0x9a46,0x9a49,
    0x9a50,0x9a55,0x9a58,0x9a61,0x9a85,0x9a91,0x9a94,0x9a95,0x9a96,0xa000,0xa002,0xa008,0xa00a,0xa015,0xa020,0xa022,
    0xa028,0xa02a,0xa045,0xa051,0xa054,0xa056,0xa059,0xa080,0xa082,0xa088,0xa08a,0xa095,0xa0a0,0xa0a2,0xa0a8,0xa0aa,
    0xa105,0xa109,0xa111,0xa114,0xa116,0xa119,0xa11a,0xa146,0xa149,0xa151,0xa155,0xa158,0xa15a,0xa161,0xa164,0xa185,
    0xa190,0xa192,0xa196,0xa199,0xa202,0xa208,0xa20a,0xa210,0xa219,0xa222,0xa228,0xa22a,0xa245,0xa251,0xa256,0xa259,
    0xa265,0xa280,0xa282,0xa288,0xa28a,0xa295,0xa2a0,0xa2a2,0xa2a8,0xa2aa,0xa419,0xa425,0xa441,0xa444,0xa450,0xa454,
    0xa455,0xa458,0xa45a,0xa461,0xa465,0xa466,0xa468,0xa469,0xa485,0xa506,0xa509,0xa510,0xa512,0xa515,0xa518,0xa526,
    0xa529,0xa542,0xa545,0xa551,0xa554,0xa555,0xa556,0xa559,0xa565,0xa56a,0xa581,0xa584,0xa585,0xa586,0xa589,0xa592,
    0xa595,0xa598,0xa605,0xa611,0xa616,0xa61a,0xa621,0xa625,0xa644,0xa646,0xa64a,0xa652,0xa655,0xa656,0xa658,0xa660,
    0xa662,0xa686,0xa690,0xa695,0xa696,0xa699,0xa6a1,0xa6a4,0xa6a6,0xa800,0xa802,0xa808,0xa80a,0xa820,0xa822,0xa828,
    0xa82a,0xa851,0xa854,0xa856,0xa859,0xa880,0xa882,0xa888,0xa88a,0xa895,0xa8a0,0xa8a2,0xa8a8,0xa8aa,0xa905,0xa914,
    0xa919,0xa921,0xa925,0xa941,0xa950,0xa955,0xa95a,0xa961,0xa966,0xa969,0xa990,0xa996,0xaa00,0xaa02,0xaa08,0xaa0a,
    0xaa20,0xaa22,0xaa28,0xaa2a,0xaa51,0xaa54,0xaa56,0xaa80,0xaa82,0xaa88,0xaa8a,0xaa95,0xaaa0,0xaaa2,0xaaa8,0xaaaa,
};
// clang-format on
// end of codebooks

// Eight 2-bit digits (low bits first) to eight bytes; four 3-bit digits to four bytes.
static uint64_t gcudai_spread_2(uint32_t digits) {
    uint64_t x = digits;
    x = (x | x << 24) & 0x000000ff000000ffull;
    x = (x | x << 12) & 0x000f000f000f000full;
    return (x | x << 6) & 0x0303030303030303ull;
}

static uint32_t gcudai_spread_3(uint32_t digits) {
    return (digits & 7u) | (digits & 0x38u) << 5 | (digits & 0x1c0u) << 10 | (digits & 0xe00u) << 15;
}

// Magnitudes of a grid entry, one per byte, element 0 lowest. Digits 0 1 2 stand for 8 25 43.
static uint64_t gcudai_iq2_entry(uint32_t digits) {
    const uint64_t x = gcudai_spread_2(digits);
    return 0x0808080808080808ull + 17u * x + (x >> 1 & 0x0101010101010101ull);
}

// 4 12 20 28 36 44 52 62: eight apart, the last two more
static uint32_t gcudai_iq3_xxs_entry(uint32_t code) {
    const uint32_t x = gcudai_spread_3(gcudai_grid_iq3xxs[code]);
    return 0x04040404u + 8u * x + 2u * (x & x >> 1 & x >> 2 & 0x01010101u);
}

static uint32_t gcudai_iq3_s_entry(uint32_t code) { return 0x01010101u + 2u * gcudai_spread_3(gcudai_grid_iq3s[code]); }

// Seven stored signs; the eighth makes the number of minuses even.
static uint32_t gcudai_even_signs(uint32_t s) {
    const uint32_t nibbles = s ^ s >> 4;
    return s | (0x6996u >> (nibbles & 15u) & 1u) << 7;
}

static void gcudai_put_signed(float * y, int n, float scale, uint64_t mags, uint32_t signs) {
    for (int j = 0; j < n; ++j) {
        const float v = scale * (float) (int) (mags >> 8 * j & 255u);
        y[j] = gcudai_bits_f32(gcudai_f32_bits(v) ^ (signs >> j & 1u) << 31);
    }
}

// ---- blocks of 32 ----------------------------------------------------------------------------------
static void gcudai_dequantize_row_q4_0(const void * x, float * y, int64_t n) {
    const struct gcuda_block_q4_0 * blocks = (const struct gcuda_block_q4_0 *) x;
    for (int64_t i = 0; i < n / 32; ++i, y += 32) {
        const struct gcuda_block_q4_0 b = blocks[i];
        const float d = gcudai_fp16_to_fp32(b.d);
        for (int j = 0; j < 16; ++j) {
            y[j] = d * (float) ((b.qs[j] & 15) - 8);
            y[j + 16] = d * (float) ((b.qs[j] >> 4) - 8);
        }
    }
}

static void gcudai_dequantize_row_q4_1(const void * x, float * y, int64_t n) {
    const struct gcuda_block_q4_1 * blocks = (const struct gcuda_block_q4_1 *) x;
    for (int64_t i = 0; i < n / 32; ++i, y += 32) {
        const struct gcuda_block_q4_1 b = blocks[i];
        const float d = gcudai_fp16_to_fp32(b.d), m = gcudai_fp16_to_fp32(b.m);
        for (int j = 0; j < 16; ++j) {
            y[j] = d * (float) (b.qs[j] & 15) + m;
            y[j + 16] = d * (float) (b.qs[j] >> 4) + m;
        }
    }
}

// Codes 0..31 of Q5_0 and Q5_1: nibbles, and bit i of a 32-bit word for element i.
static void gcudai_unpack_q5(const uint8_t * qh, const uint8_t * qs, uint8_t * q) {
    const uint32_t h = (uint32_t) qh[0] | (uint32_t) qh[1] << 8 | (uint32_t) qh[2] << 16 | (uint32_t) qh[3] << 24;
    for (int j = 0; j < 16; ++j) {
        q[j] = (uint8_t) ((qs[j] & 15u) | (h >> j & 1u) << 4);
        q[j + 16] = (uint8_t) ((uint32_t) qs[j] >> 4 | (h >> (j + 16) & 1u) << 4);
    }
}

static void gcudai_dequantize_row_q5_0(const void * x, float * y, int64_t n) {
    const struct gcuda_block_q5_0 * b = (const struct gcuda_block_q5_0 *) x;
    for (int64_t i = 0; i < n / 32; ++i, ++b, y += 32) {
        const float d = gcudai_fp16_to_fp32(b->d);
        uint8_t q[32];
        gcudai_unpack_q5(b->qh, b->qs, q);
        for (int j = 0; j < 32; ++j) { y[j] = d * (float) (q[j] - 16); }
    }
}

static void gcudai_dequantize_row_q5_1(const void * x, float * y, int64_t n) {
    const struct gcuda_block_q5_1 * b = (const struct gcuda_block_q5_1 *) x;
    for (int64_t i = 0; i < n / 32; ++i, ++b, y += 32) {
        const float d = gcudai_fp16_to_fp32(b->d), m = gcudai_fp16_to_fp32(b->m);
        uint8_t q[32];
        gcudai_unpack_q5(b->qh, b->qs, q);
        for (int j = 0; j < 32; ++j) { y[j] = d * (float) q[j] + m; }
    }
}

static void gcudai_dequantize_row_q8_0(const void * x, float * y, int64_t n) {
    const struct gcuda_block_q8_0 * blocks = (const struct gcuda_block_q8_0 *) x;
    for (int64_t i = 0; i < n / 32; ++i, y += 32) {
        const struct gcuda_block_q8_0 b = blocks[i];
        const float d = gcudai_fp16_to_fp32(b.d);
        for (int j = 0; j < 32; ++j) { y[j] = d * (float) b.qs[j]; }
    }
}

static void gcudai_dequantize_row_q8_1(const void * x, float * y, int64_t n) {
    const struct gcuda_block_q8_1 * blocks = (const struct gcuda_block_q8_1 *) x;
    for (int64_t i = 0; i < n / 32; ++i, y += 32) {
        const struct gcuda_block_q8_1 b = blocks[i];
        const float d = gcudai_fp16_to_fp32(b.d);
        for (int j = 0; j < 32; ++j) { y[j] = d * (float) b.qs[j]; }
    }
}

// 32 nibbles through a table of 16 values
static void gcudai_put_nibbles(float * y, float scale, const int8_t * values, const uint8_t * qs) {
    for (int j = 0; j < 16; ++j) {
        const uint32_t q = qs[j];
        y[j] = scale * (float) values[q & 15u];
        y[j + 16] = scale * (float) values[q >> 4];
    }
}

static void gcudai_dequantize_row_iq4_nl(const void * x, float * y, int64_t n) {
    const struct gcuda_block_iq4_nl * b = (const struct gcuda_block_iq4_nl *) x;
    for (int64_t i = 0; i < n / 32; ++i) {
        gcudai_put_nibbles(y + 32 * i, gcudai_fp16_to_fp32(b[i].d), gcudai_kvalues_iq4nl, b[i].qs);
    }
}

// 2^(e - 128), half of the E8M0 scale because the table holds doubled values; e = 0 and 1 are subnormal.
static float gcudai_mxfp4_scale(uint32_t e) {
    return gcudai_bits_f32(e < 2u ? 0x00200000u << e : (e - 1u) << 23);
}

static void gcudai_dequantize_row_mxfp4(const void * x, float * y, int64_t n) {
    const struct gcuda_block_mxfp4 * b = (const struct gcuda_block_mxfp4 *) x;
    for (int64_t i = 0; i < n / 32; ++i) {
        gcudai_put_nibbles(y + 32 * i, gcudai_mxfp4_scale(b[i].e), gcudai_kvalues_mxfp4, b[i].qs);
    }
}

// ---- blocks of 256 with integer sub-scales ---------------------------------------------------------
static void gcudai_dequantize_row_q2_k(const void * x, float * y, int64_t n) {
    const struct gcuda_block_q2_k * blocks = (const struct gcuda_block_q2_k *) x;
    for (int64_t i = 0; i < n / 256; ++i) {
        const struct gcuda_block_q2_k b = blocks[i];
        const float d = gcudai_fp16_to_fp32(b.d), dmin = gcudai_fp16_to_fp32(b.dmin);
        for (int g = 0; g < 16; ++g, y += 16) {
            const float scale = d * (float) (b.scales[g] & 15), min = dmin * (float) (b.scales[g] >> 4);
            const uint8_t * q = b.qs + 32 * (g / 8) + 16 * (g % 2);
            const int shift = 2 * (g % 8 / 2);
            for (int j = 0; j < 16; ++j) { y[j] = scale * (float) (q[j] >> shift & 3) - min; }
        }
    }
}

// Sixteen 6-bit scales, stored with 32 added: nibbles in eight bytes, the two high bits in four more.
static void gcudai_unpack_q3_k_scales(const uint8_t * p, int8_t * scales) {
    for (int g = 0; g < 16; ++g) {
        const int lo = p[g % 8] >> 4 * (g / 8) & 15, hi = p[8 + g % 4] >> 2 * (g / 4) & 3;
        scales[g] = (int8_t) ((lo | hi << 4) - 32);
    }
}

static void gcudai_dequantize_row_q3_k(const void * x, float * y, int64_t n) {
    const struct gcuda_block_q3_k * blocks = (const struct gcuda_block_q3_k *) x;
    for (int64_t i = 0; i < n / 256; ++i) {
        const struct gcuda_block_q3_k b = blocks[i];
        const float d = gcudai_fp16_to_fp32(b.d);
        int8_t scales[16];
        gcudai_unpack_q3_k_scales(b.scales, scales);
        for (int g = 0; g < 16; ++g, y += 16) {
            const float scale = d * (float) scales[g];
            const uint8_t * q = b.qs + 32 * (g / 8) + 16 * (g % 2);
            const uint8_t * h = b.hmask + 16 * (g % 2);
            const int shift = 2 * (g % 8 / 2), bit = g / 2;
            for (int j = 0; j < 16; ++j) {
                y[j] = scale * (float) ((q[j] >> shift & 3) + 4 * (h[j] >> bit & 1) - 4);
            }
        }
    }
}

// Eight pairs of 6-bit scale and min in 12 bytes (Q4_K, Q5_K): four plain pairs whose top bits carry the high bits of
// the other four, of which the last four bytes hold the low nibbles.
static void gcudai_unpack_k_scales(const uint8_t * p, uint8_t * scales, uint8_t * mins) {
    for (int g = 0; g < 4; ++g) {
        scales[g] = p[g] & 63u;
        mins[g] = p[g + 4] & 63u;
        scales[g + 4] = (uint8_t) ((p[g + 8] & 15u) | (uint32_t) (p[g] >> 6) << 4);
        mins[g + 4] = (uint8_t) ((uint32_t) (p[g + 8] >> 4) | (uint32_t) (p[g + 4] >> 6) << 4);
    }
}

static void gcudai_dequantize_row_q4_k(const void * x, float * y, int64_t n) {
    const struct gcuda_block_q4_k * blocks = (const struct gcuda_block_q4_k *) x;
    for (int64_t i = 0; i < n / 256; ++i) {
        const struct gcuda_block_q4_k b = blocks[i];
        const float d = gcudai_fp16_to_fp32(b.d), dmin = gcudai_fp16_to_fp32(b.dmin);
        uint8_t scales[8], mins[8];
        gcudai_unpack_k_scales(b.scales, scales, mins);
        for (int g = 0; g < 8; ++g, y += 32) {
            const float scale = d * (float) scales[g], min = dmin * (float) mins[g];
            const uint8_t * q = b.qs + 32 * (g / 2);
            const int shift = 4 * (g % 2);
            for (int j = 0; j < 32; ++j) { y[j] = scale * (float) (q[j] >> shift & 15) - min; }
        }
    }
}

static void gcudai_dequantize_row_q5_k(const void * x, float * y, int64_t n) {
    const struct gcuda_block_q5_k * blocks = (const struct gcuda_block_q5_k *) x;
    for (int64_t i = 0; i < n / 256; ++i) {
        const struct gcuda_block_q5_k b = blocks[i];
        const float d = gcudai_fp16_to_fp32(b.d), dmin = gcudai_fp16_to_fp32(b.dmin);
        uint8_t scales[8], mins[8];
        gcudai_unpack_k_scales(b.scales, scales, mins);
        for (int g = 0; g < 8; ++g, y += 32) {
            const float scale = d * (float) scales[g], min = dmin * (float) mins[g];
            const uint8_t * q = b.qs + 32 * (g / 2);
            const int shift = 4 * (g % 2);
            for (int j = 0; j < 32; ++j) {
                y[j] = scale * (float) ((q[j] >> shift & 15) | (b.qh[j] >> g & 1) << 4) - min;
            }
        }
    }
}

static void gcudai_dequantize_row_q6_k(const void * x, float * y, int64_t n) {
    const struct gcuda_block_q6_k * blocks = (const struct gcuda_block_q6_k *) x;
    for (int64_t i = 0; i < n / 256; ++i) {
        const struct gcuda_block_q6_k b = blocks[i];
        const float d = gcudai_fp16_to_fp32(b.d);
        for (int g = 0; g < 16; ++g, y += 16) {
            const float scale = d * (float) b.scales[g];
            const int half = g / 8, k = g % 8 / 2; // k: which 32 of the half's 128 elements
            const uint8_t * lo = b.ql + 64 * half + 32 * (k % 2) + 16 * (g % 2);
            const uint8_t * hi = b.qh + 32 * half + 16 * (g % 2);
            for (int j = 0; j < 16; ++j) {
                y[j] = scale * (float) (((lo[j] >> 4 * (k / 2) & 15) | (hi[j] >> 2 * k & 3) << 4) - 32);
            }
        }
    }
}

static void gcudai_dequantize_row_q8_k(const void * x, float * y, int64_t n) {
    const struct gcuda_block_q8_k * blocks = (const struct gcuda_block_q8_k *) x;
    for (int64_t i = 0; i < n / 256; ++i, y += 256) {
        const struct gcuda_block_q8_k b = blocks[i];
        for (int j = 0; j < 256; ++j) { y[j] = b.d * (float) b.qs[j]; }
    }
}

static void gcudai_dequantize_row_iq4_xs(const void * x, float * y, int64_t n) {
    const struct gcuda_block_iq4_xs * b = (const struct gcuda_block_iq4_xs *) x;
    for (int64_t i = 0; i < n / 256; ++i, ++b) {
        const float d = gcudai_fp16_to_fp32(b->d);
        for (int g = 0; g < 8; ++g, y += 32) {
            const int scale = (b->scales_l[g / 2] >> 4 * (g % 2) & 15) | (b->scales_h >> 2 * g & 3) << 4;
            gcudai_put_nibbles(y, d * (float) (scale - 32), gcudai_kvalues_iq4nl, b->qs + 16 * g);
        }
    }
}

// ---- blocks of 256 with codebooks ------------------------------------------------------------------
static void gcudai_dequantize_row_iq2_xxs(const void * x, float * y, int64_t n) {
    const struct gcuda_block_iq2_xxs * b = (const struct gcuda_block_iq2_xxs *) x;
    for (int64_t i = 0; i < n / 256; ++i, ++b) {
        const float d = gcudai_fp16_to_fp32(b->d);
        for (int g = 0; g < 8; ++g) {
            const uint16_t * q = b->qs + 4 * g; // four codes, then 4 x 7 signs and 4 bits scale
            const uint32_t aux = (uint32_t) q[2] | (uint32_t) q[3] << 16;
            const float scale = d * (0.5f + (float) (int) (aux >> 28)) * 0.25f;
            for (int k = 0; k < 4; ++k, y += 8) {
                const uint32_t code = (uint32_t) q[k / 2] >> 8 * (k % 2) & 255u;
                gcudai_put_signed(y, 8, scale, gcudai_iq2_entry(gcudai_grid_iq2xxs[code]),
                                  gcudai_even_signs(aux >> 7 * k & 127u));
            }
        }
    }
}

static void gcudai_dequantize_row_iq2_xs(const void * x, float * y, int64_t n) {
    const struct gcuda_block_iq2_xs * b = (const struct gcuda_block_iq2_xs *) x;
    for (int64_t i = 0; i < n / 256; ++i, ++b) {
        const float d = gcudai_fp16_to_fp32(b->d);
        for (int g = 0; g < 32; ++g, y += 8) {
            const float scale = d * (0.5f + (float) (b->scales[g / 4] >> 4 * (g / 2 % 2) & 15)) * 0.25f;
            const uint32_t q = b->qs[g];
            gcudai_put_signed(y, 8, scale, gcudai_iq2_entry(gcudai_grid_iq2xs[q & 511u]), gcudai_even_signs(q >> 9));
        }
    }
}

static void gcudai_dequantize_row_iq2_s(const void * x, float * y, int64_t n) {
    const struct gcuda_block_iq2_s * b = (const struct gcuda_block_iq2_s *) x;
    for (int64_t i = 0; i < n / 256; ++i, ++b) {
        const float d = gcudai_fp16_to_fp32(b->d);
        for (int g = 0; g < 32; ++g, y += 8) {
            const float scale = d * (0.5f + (float) (b->scales[g / 4] >> 4 * (g / 2 % 2) & 15)) * 0.25f;
            const uint32_t code = (uint32_t) b->qs[g] | ((uint32_t) b->qh[g / 4] >> 2 * (g % 4) & 3u) << 8;
            gcudai_put_signed(y, 8, scale, gcudai_iq2_entry(gcudai_grid_iq2s[code]), b->signs[g]);
        }
    }
}

static void gcudai_dequantize_row_iq3_xxs(const void * x, float * y, int64_t n) {
    const struct gcuda_block_iq3_xxs * b = (const struct gcuda_block_iq3_xxs *) x;
    for (int64_t i = 0; i < n / 256; ++i, ++b) {
        const float d = gcudai_fp16_to_fp32(b->d);
        for (int g = 0; g < 8; ++g) {
            const uint16_t * word = b->scales_and_signs + 2 * g;
            const uint32_t aux = (uint32_t) word[0] | (uint32_t) word[1] << 16;
            const float scale = d * (0.5f + (float) (int) (aux >> 28)) * 0.5f;
            for (int k = 0; k < 4; ++k, y += 8) {
                const uint8_t * q = b->qs + 8 * g + 2 * k;
                const uint32_t signs = gcudai_even_signs(aux >> 7 * k & 127u);
                gcudai_put_signed(y, 4, scale, gcudai_iq3_xxs_entry(q[0]), signs);
                gcudai_put_signed(y + 4, 4, scale, gcudai_iq3_xxs_entry(q[1]), signs >> 4);
            }
        }
    }
}

static void gcudai_dequantize_row_iq3_s(const void * x, float * y, int64_t n) {
    const struct gcuda_block_iq3_s * b = (const struct gcuda_block_iq3_s *) x;
    for (int64_t i = 0; i < n / 256; ++i, ++b) {
        const float d = gcudai_fp16_to_fp32(b->d);
        for (int g = 0; g < 64; ++g, y += 4) {
            const float scale = d * (float) (1 + 2 * (b->scales[g / 16] >> 4 * (g / 8 % 2) & 15));
            const uint32_t code = (uint32_t) b->qs[g] | ((uint32_t) b->qh[g / 8] >> (g % 8) & 1u) << 8;
            gcudai_put_signed(y, 4, scale, gcudai_iq3_s_entry(code), (uint32_t) b->signs[g / 2] >> 4 * (g % 2));
        }
    }
}

// Eight values -1, 0, 1 of a code, all moved by delta (+-1/8)
static void gcudai_put_iq1(float * y, float scale, uint32_t code, float delta) {
    const uint64_t digits = gcudai_spread_2(gcudai_grid_iq1s[code]);
    for (int j = 0; j < 8; ++j) { y[j] = scale * ((float) ((int) (digits >> 8 * j & 3u) - 1) + delta); }
}

static void gcudai_dequantize_row_iq1_s(const void * x, float * y, int64_t n) {
    const struct gcuda_block_iq1_s * b = (const struct gcuda_block_iq1_s *) x;
    for (int64_t i = 0; i < n / 256; ++i, ++b) {
        const float d = gcudai_fp16_to_fp32(b->d);
        for (int g = 0; g < 8; ++g) {
            const uint32_t h = b->qh[g];
            const float scale = d * (float) (int) (2u * (h >> 12 & 7u) + 1u);
            for (int k = 0; k < 4; ++k, y += 8) {
                gcudai_put_iq1(y, scale, b->qs[4 * g + k] | (h >> 3 * k & 7u) << 8, h & 0x8000u ? -0.125f : 0.125f);
            }
        }
    }
}

static gcuda_fp16_t gcudai_iq1_m_scale(const struct gcuda_block_iq1_m * b) {
    return (gcuda_fp16_t) (b->scales[0] >> 12 | (b->scales[1] >> 12) << 4 | (b->scales[2] >> 12) << 8 |
                           (b->scales[3] >> 12) << 12);
}

static void gcudai_dequantize_row_iq1_m(const void * x, float * y, int64_t n) {
    const struct gcuda_block_iq1_m * b = (const struct gcuda_block_iq1_m *) x;
    for (int64_t i = 0; i < n / 256; ++i, ++b) {
        const float d = gcudai_fp16_to_fp32(gcudai_iq1_m_scale(b));
        for (int g = 0; g < 32; ++g, y += 8) {
            const float scale = d * (float) (2 * (b->scales[g / 8] >> 3 * (g / 2 % 4) & 7) + 1);
            const uint32_t h = (uint32_t) b->qh[g / 2] >> 4 * (g % 2) & 15u;
            gcudai_put_iq1(y, scale, b->qs[g] | (h & 7u) << 8, h & 8u ? -0.125f : 0.125f);
        }
    }
}

// ---- quantizing: roundings that take any input -----------------------------------------------------
// Codes are made from values that a hostile or broken model may have turned into NaN or infinity, so every conversion
// to an integer clamps first; NaN becomes the lower bound.

#define GCUDAI_TINY_BLOCK 1e-15f // the searches take a smaller extreme element for zero

static float gcudai_clamp(float v, float lo, float hi) {
    v = v > lo ? v : lo;
    return v < hi ? v : hi;
}

// To the nearest integer, ties to even: 1.5 * 2^23 has an ulp of 1, so the sum's low bits are the integer.
static int gcudai_nearest(float v, int lo, int hi) {
    const float sum = gcudai_clamp(v, (float) lo, (float) hi) + 12582912.0f;
    return (int) (gcudai_f32_bits(sum) & 0x007fffffu) - 0x00400000;
}

// To the nearest integer, ties away from zero. Adding 0.5 and truncating would take 0.49999997 to 1.
static int gcudai_nearest_away(float v, int limit) {
    v = gcudai_clamp(v, (float) -limit, (float) limit);
    const int q = (int) v;
    const float rest = v - (float) q;
    return q + (rest >= 0.5f) - (rest <= -0.5f);
}

static int gcudai_trunc(float v, int hi) { return (int) gcudai_clamp(v, 0.0f, (float) hi); }

// The element of largest magnitude with its sign, the first of several; NaN is passed over.
static float gcudai_extreme(const float * x, int n) {
    float max = 0.0f, v = 0.0f;
    for (int i = 0; i < n; ++i) {
        if (fabsf(x[i]) > max) {
            max = fabsf(x[i]);
            v = x[i];
        }
    }
    return v;
}

// 1 / d; 0 for d == 0 and also for a d so small (below 2^-128) that the result is infinite.
static float gcudai_reciprocal(float d) {
    const float r = d != 0.0f ? 1.0f / d : 0.0f;
    return fabsf(r) <= FLT_MAX ? r : 0.0f;
}

static void gcudai_pack_nibbles(const uint8_t * q, uint8_t * qs) {
    for (int j = 0; j < 16; ++j) { qs[j] = (uint8_t) ((q[j] & 15u) | (uint32_t) q[j + 16] << 4); }
}

static void gcudai_pack_q5(const uint8_t * q, uint8_t * qh, uint8_t * qs) {
    uint32_t h = 0;
    for (int j = 0; j < 32; ++j) { h |= ((uint32_t) q[j] >> 4 & 1u) << j; }
    for (int k = 0; k < 4; ++k) { qh[k] = (uint8_t) (h >> 8 * k & 255u); }
    gcudai_pack_nibbles(q, qs);
}

// ---- run-time rules of the blocks of 32 (quants.md 3.1, 6.3, 8) ------------------------------------
// Codes 0 .. 2 * zero - 1 around `zero` (8 or 16), the extreme element at code 0. Returns the scale.
static float gcudai_codes_symmetric(const float * x, int zero, uint8_t * q) {
    float d = gcudai_extreme(x, 32) / (float) -zero;
    const float id = gcudai_reciprocal(d);
    if (id == 0.0f) { d = fabsf(d) <= FLT_MAX ? -0.0f : d; } // also for tiny blocks; what 0 / -zero is
    for (int j = 0; j < 32; ++j) { q[j] = (uint8_t) gcudai_trunc(x[j] * id + ((float) zero + 0.5f), 2 * zero - 1); }
    return d;
}

// Codes 0 .. max from the minimum up. Returns the scale.
static float gcudai_codes_affine(const float * x, int max, uint8_t * q, float * min) {
    float lo = x[0], hi = x[0];
    for (int j = 1; j < 32; ++j) {
        lo = x[j] < lo ? x[j] : lo;
        hi = x[j] > hi ? x[j] : hi;
    }
    const float d = (hi - lo) / (float) max, id = gcudai_reciprocal(d);
    for (int j = 0; j < 32; ++j) { q[j] = (uint8_t) gcudai_trunc((x[j] - lo) * id + 0.5f, max); }
    *min = lo;
    return d;
}

static void gcudai_quantize_row_q4_0(const float * x, void * y, int64_t n) {
    struct gcuda_block_q4_0 * b = (struct gcuda_block_q4_0 *) y;
    for (int64_t i = 0; i < n / 32; ++i, ++b, x += 32) {
        uint8_t q[32];
        b->d = gcudai_fp32_to_fp16(gcudai_codes_symmetric(x, 8, q));
        gcudai_pack_nibbles(q, b->qs);
    }
}

static void gcudai_quantize_row_q4_1(const float * x, void * y, int64_t n) {
    struct gcuda_block_q4_1 * b = (struct gcuda_block_q4_1 *) y;
    for (int64_t i = 0; i < n / 32; ++i, ++b, x += 32) {
        uint8_t q[32];
        float min;
        b->d = gcudai_fp32_to_fp16(gcudai_codes_affine(x, 15, q, &min));
        b->m = gcudai_fp32_to_fp16(min);
        gcudai_pack_nibbles(q, b->qs);
    }
}

static void gcudai_quantize_row_q5_0(const float * x, void * y, int64_t n) {
    struct gcuda_block_q5_0 * b = (struct gcuda_block_q5_0 *) y;
    for (int64_t i = 0; i < n / 32; ++i, ++b, x += 32) {
        uint8_t q[32];
        b->d = gcudai_fp32_to_fp16(gcudai_codes_symmetric(x, 16, q));
        gcudai_pack_q5(q, b->qh, b->qs);
    }
}

static void gcudai_quantize_row_q5_1(const float * x, void * y, int64_t n) {
    struct gcuda_block_q5_1 * b = (struct gcuda_block_q5_1 *) y;
    for (int64_t i = 0; i < n / 32; ++i, ++b, x += 32) {
        uint8_t q[32];
        float min;
        b->d = gcudai_fp32_to_fp16(gcudai_codes_affine(x, 31, q, &min));
        b->m = gcudai_fp32_to_fp16(min);
        gcudai_pack_q5(q, b->qh, b->qs);
    }
}

// Codes -127 .. 127 of 32 elements. Returns the scale.
static float gcudai_codes_q8(const float * x, int8_t * q) {
    float d = fabsf(gcudai_extreme(x, 32)) / 127.0f;
    const float id = gcudai_reciprocal(d);
    if (id == 0.0f && d <= FLT_MAX) { d = 0.0f; }
    for (int j = 0; j < 32; ++j) { q[j] = (int8_t) gcudai_nearest_away(x[j] * id, 127); }
    return d;
}

static void gcudai_quantize_row_q8_0(const float * x, void * y, int64_t n) {
    struct gcuda_block_q8_0 * b = (struct gcuda_block_q8_0 *) y;
    for (int64_t i = 0; i < n / 32; ++i, ++b, x += 32) { b->d = gcudai_fp32_to_fp16(gcudai_codes_q8(x, b->qs)); }
}

static void gcudai_quantize_row_q8_1(const float * x, void * y, int64_t n) {
    struct gcuda_block_q8_1 * b = (struct gcuda_block_q8_1 *) y;
    for (int64_t i = 0; i < n / 32; ++i, ++b, x += 32) {
        const float d = gcudai_codes_q8(x, b->qs);
        int sum = 0;
        for (int j = 0; j < 32; ++j) { sum += b->qs[j]; }
        b->d = gcudai_fp32_to_fp16(d);
        b->s = gcudai_fp32_to_fp16(d * (float) sum);
    }
}

// The code of the IQ4_NL value nearest to t, of two equally near ones the larger: how many midpoints t has reached.
static int gcudai_nearest_iq4nl(float t) {
    static const float middle[15] = { -115.5f, -93.5f, -74.0f, -57.0f, -42.0f, -28.5f, -16.0f, -4.5f,
                                      7.0f, 19.0f, 31.5f, 45.5f, 61.0f, 79.0f, 101.0f };
    int code = 0;
    for (int k = 0; k < 15; ++k) { code += t >= middle[k]; }
    return code;
}

// Codes of 32 elements scaled by `is`, and the two sums of a weighted fit: A = sum w v x, B = sum w v^2.
static void gcudai_codes_iq4nl(const float * x, const float * w, float is, uint8_t * q, float * a, float * b) {
    for (int j = 0; j < 32; ++j) { q[j] = (uint8_t) gcudai_nearest_iq4nl(is * x[j]); }
    float num = 0.0f, den = 0.0f;
    for (int j = 0; j < 32; ++j) {
        const float v = (float) gcudai_kvalues_iq4nl[q[j]];
        num += w[j] * v * x[j];
        den += w[j] * v * v;
    }
    *a = num;
    *b = den;
}

// Copies and set_rows: one guess, then the scale that fits its codes best. gcuda_quantize_chunk searches more.
static void gcudai_quantize_row_iq4_nl(const float * x, void * y, int64_t n) {
    struct gcuda_block_iq4_nl * b = (struct gcuda_block_iq4_nl *) y;
    for (int64_t i = 0; i < n / 32; ++i, ++b, x += 32) {
        uint8_t q[32];
        float w[32], num, den;
        const float extreme = gcudai_extreme(x, 32);
        const float d = fabsf(extreme) < GCUDAI_TINY_BLOCK ? 0.0f : extreme / -127.0f;
        for (int j = 0; j < 32; ++j) { w[j] = x[j] * x[j]; }
        gcudai_codes_iq4nl(x, w, gcudai_reciprocal(d), q, &num, &den);
        b->d = gcudai_fp32_to_fp16(d != 0.0f && den > 0.0f ? num / den : d);
        gcudai_pack_nibbles(q, b->qs);
    }
}

// The largest element gets the exponent field of 8 .. 16 units, whose upper part is cut to 12. The thresholds are the
// middles between neighbouring values and exact in F32, so a tie goes to the smaller code as the rule wants.
static void gcudai_quantize_row_mxfp4(const float * x, void * y, int64_t n) {
    static const float middle[7] = { 0.5f, 1.5f, 2.5f, 3.5f, 5.0f, 7.0f, 10.0f };
    struct gcuda_block_mxfp4 * b = (struct gcuda_block_mxfp4 *) y;
    for (int64_t i = 0; i < n / 32; ++i, ++b, x += 32) {
        const uint32_t exponent = gcudai_f32_bits(gcudai_extreme(x, 32)) >> 23 & 255u;
        b->e = (uint8_t) (exponent > 2u ? exponent - 2u : 0u);
        const float s = gcudai_mxfp4_scale(b->e);
        uint8_t q[32];
        for (int j = 0; j < 32; ++j) {
            int code = 0;
            for (int k = 0; k < 7; ++k) { code += fabsf(x[j]) > middle[k] * s; }
            q[j] = (uint8_t) (code + (x[j] < 0.0f && code > 0 ? 8 : 0));
        }
        gcudai_pack_nibbles(q, b->qs);
    }
}

static void gcudai_quantize_row_q8_k(const float * x, void * y, int64_t n) {
    struct gcuda_block_q8_k * b = (struct gcuda_block_q8_k *) y;
    for (int64_t i = 0; i < n / 256; ++i, ++b, x += 256) {
        const float extreme = gcudai_extreme(x, 256), is = extreme != 0.0f ? -127.0f / extreme : 0.0f;
        if (is == 0.0f || !(fabsf(is) <= FLT_MAX)) {
            memset(b, 0, sizeof *b);
            continue;
        }
        b->d = 1.0f / is;
        for (int j = 0; j < 256; ++j) { b->qs[j] = (int8_t) gcudai_nearest(is * x[j], -127, 127); }
        for (int g = 0; g < 16; ++g) {
            int sum = 0;
            for (int j = 0; j < 16; ++j) { sum += b->qs[16 * g + j]; }
            b->bsums[g] = (int16_t) sum;
        }
    }
}

// ---- searches for scales (quants.md 5.6, 5.7, 5.8); n is at most 32 --------------------------------
struct gcudai_affine_rule {
    float start, step; // try (start + step * k + n_max) / (hi - lo) for k = 0 .. n_steps
    int n_steps;
    bool absolute;   // error measured by magnitude, not by square
    bool any_offset; // not only lo <= 0: the K formats store -lo as a non-negative number
};

static void gcudai_affine_codes(int n, int max, const float * x, float is, float lo, uint8_t * q) {
    for (int i = 0; i < n; ++i) { q[i] = (uint8_t) gcudai_nearest(is * (x[i] - lo), 0, max); }
}

static float gcudai_affine_error(int n, const float * x, const float * w, const uint8_t * q, float scale, float lo,
                                 bool absolute) {
    float sum = 0.0f;
    for (int i = 0; i < n; ++i) {
        const float diff = scale * (float) q[i] + lo - x[i];
        sum += w[i] * (absolute ? fabsf(diff) : diff * diff);
    }
    return sum;
}

// Weighted least squares of x = scale * q + lo. False if q does not determine it.
static bool gcudai_affine_fit(int n, const float * x, const float * w, const uint8_t * q, bool any_offset,
                              float * scale, float * lo) {
    float sw = 0.0f, sx = 0.0f, sq = 0.0f, sqq = 0.0f, sxq = 0.0f;
    for (int i = 0; i < n; ++i) {
        const float v = (float) q[i];
        sw += w[i];
        sx += w[i] * x[i];
        sq += w[i] * v;
        sqq += w[i] * v * v;
        sxq += w[i] * v * x[i];
    }
    const float det = sw * sqq - sq * sq;
    if (!(det > 0.0f)) { return false; }
    *scale = (sw * sxq - sx * sq) / det;
    *lo = (sqq * sx - sq * sxq) / det;
    if (*lo > 0.0f && !any_offset) {
        *lo = 0.0f;
        *scale = sxq / sqq;
    }
    return true;
}

// x ~ scale * q - min with codes 0 .. max. Returns the scale, 0 where all elements are equal and <= 0.
static float gcudai_search_affine(int n, int max, const float * x, const float * w,
                                  const struct gcudai_affine_rule * rule, uint8_t * q, float * min) {
    float lo = rule->any_offset ? x[0] : 0.0f, hi = x[0];
    for (int i = 0; i < n; ++i) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    if (!(hi > lo)) {
        for (int i = 0; i < n; ++i) { q[i] = 0; }
        *min = -lo;
        return 0.0f;
    }
    const float first = (float) max / (hi - lo);
    float scale = 1.0f / first;
    gcudai_affine_codes(n, max, x, first, lo, q);
    float best = gcudai_affine_error(n, x, w, q, scale, lo, rule->absolute);
    for (int k = 0; k <= rule->n_steps; ++k) {
        uint8_t try_q[32];
        float try_scale, try_lo;
        gcudai_affine_codes(n, max, x, (rule->start + rule->step * (float) k + (float) max) / (hi - lo), lo, try_q);
        if (!gcudai_affine_fit(n, x, w, try_q, rule->any_offset, &try_scale, &try_lo)) { continue; }
        const float error = gcudai_affine_error(n, x, w, try_q, try_scale, try_lo, rule->absolute);
        if (error < best) {
            best = error;
            scale = try_scale;
            lo = try_lo;
            memcpy(q, try_q, (size_t) n);
        }
    }
    *min = -lo;
    return scale;
}

// Codes -max .. max - 1 for x * is, and A = sum w x q, B = sum w q^2; A / B is the scale that fits them best.
static void gcudai_symmetric_codes(int n, int max, const float * x, const float * w, float is, int8_t * q, float * a,
                                   float * b) {
    for (int i = 0; i < n; ++i) { q[i] = (int8_t) gcudai_nearest(is * x[i], -max, max - 1); }
    float num = 0.0f, den = 0.0f;
    for (int i = 0; i < n; ++i) {
        const float v = (float) q[i];
        num += w[i] * x[i] * v;
        den += w[i] * v * v;
    }
    *a = num;
    *b = den;
}

// x ~ scale * q; nineteen scales around the one that puts the extreme element at code -max. Returns the scale.
static float gcudai_search_symmetric(int n, int max, const float * x, const float * w, int8_t * q) {
    const float extreme = gcudai_extreme(x, n);
    if (fabsf(extreme) < GCUDAI_TINY_BLOCK) {
        for (int i = 0; i < n; ++i) { q[i] = (int8_t) -max; } // stored as zeros
        return 0.0f;
    }
    float a, b;
    gcudai_symmetric_codes(n, max, x, w, (float) -max / extreme, q, &a, &b);
    float scale = b != 0.0f ? a / b : 0.0f, best = scale * a;
    for (int k = -9; k <= 9; ++k) {
        if (k == 0) { continue; }
        int8_t try_q[32];
        gcudai_symmetric_codes(n, max, x, w, -((float) max + 0.1f * (float) k) / extreme, try_q, &a, &b);
        if (b > 0.0f && a * a > best * b) {
            scale = a / b;
            best = scale * a;
            memcpy(q, try_q, (size_t) n);
        }
    }
    return scale;
}

// Moves one code at a time to where the fit gets better, at most five times over all. lo, hi bound the codes; a and b
// are the sums of gcudai_symmetric_codes for q.
static void gcudai_improve_codes(int n, int lo, int hi, const float * x, const float * w, int8_t * q, float * a,
                                 float * b) {
    for (int sweep = 0, changed = 1; sweep < 5 && changed; ++sweep) {
        changed = 0;
        for (int i = 0; i < n; ++i) {
            const float old = (float) q[i];
            float rest_a = *a - w[i] * x[i] * old;
            if (!(rest_a > 0.0f)) { continue; }
            float rest_b = *b - w[i] * old * old;
            const int code = gcudai_nearest(x[i] * rest_b / rest_a, lo, hi);
            if (code == q[i]) { continue; }
            rest_a += w[i] * x[i] * (float) code;
            rest_b += w[i] * (float) code * (float) code;
            if (rest_b > 0.0f && rest_a * rest_a * *b > *a * *a * rest_b) {
                q[i] = (int8_t) code;
                *a = rest_a;
                *b = rest_b;
                changed = 1;
            }
        }
    }
}

static float gcudai_search_descent(int n, int max, const float * x, int8_t * q) {
    const float extreme = gcudai_extreme(x, n);
    if (fabsf(extreme) < GCUDAI_TINY_BLOCK) {
        for (int i = 0; i < n; ++i) { q[i] = (int8_t) -max; }
        return 0.0f;
    }
    float w[32], a, b;
    for (int i = 0; i < n; ++i) { w[i] = x[i] * x[i]; }
    gcudai_symmetric_codes(n, max, x, w, (float) -max / extreme, q, &a, &b);
    gcudai_improve_codes(n, -max, max - 1, x, w, q, &a, &b);
    return b > 0.0f ? a / b : 0.0f;
}

// Non-negative x ~ scale * q with codes 0 .. max: how the importance-weighted variants quantize scales and mins.
static float gcudai_search_positive(int n, int max, const float * x, const float * w, uint8_t * q) {
    float top = 0.0f, best = FLT_MAX;
    for (int i = 0; i < n; ++i) {
        top = x[i] > top ? x[i] : top;
        q[i] = 0;
    }
    if (top < GCUDAI_TINY_BLOCK) { return 0.0f; }
    int8_t signed_q[32];
    for (int k = -4; k <= 4; ++k) {
        uint8_t try_q[32];
        const float is = ((float) max + 0.1f * (float) k) / top;
        gcudai_affine_codes(n, max, x, is, 0.0f, try_q);
        const float error = gcudai_affine_error(n, x, w, try_q, 1.0f / is, 0.0f, false);
        if (error < best) {
            best = error;
            memcpy(signed_q, try_q, (size_t) n);
            memcpy(q, try_q, (size_t) n);
        }
    }
    if (best == FLT_MAX) { return 0.0f; } // only with NaN or infinity among the numbers
    float a = 0.0f, b = 0.0f;
    for (int i = 0; i < n; ++i) {
        a += w[i] * x[i] * (float) q[i];
        b += w[i] * (float) q[i] * (float) q[i];
    }
    gcudai_improve_codes(n, 0, max, x, w, signed_q, &a, &b);
    memcpy(q, signed_q, (size_t) n);
    return b > 0.0f ? a / b : 0.0f;
}

static float gcudai_mean_square(const float * x, int64_t n) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n; ++i) { sum += x[i] * x[i]; }
    return sum / (float) n;
}

// What an error at an element costs: its column's importance, more for large elements.
static void gcudai_weigh(const float * x, const float * importance, float variance, int n, float * w) {
    for (int i = 0; i < n; ++i) { w[i] = importance[i] * sqrtf(variance + x[i] * x[i]); }
}

static float gcudai_sum(const float * x, int n) {
    float sum = 0.0f;
    for (int i = 0; i < n; ++i) { sum += x[i]; }
    return sum;
}

// ---- blocks of 256 with integer sub-scales (quants.md 5) -------------------------------------------
// Q2_K, Q4_K, Q5_K: x ~ d * scales[g] * q - dmin * mins[g]
struct gcudai_affine_format {
    int n_sub, sub_len, max_code, max_scale;
    struct gcudai_affine_rule rule; // without importance
};

struct gcudai_affine_block {
    uint8_t q[256], scales[16], mins[16];
    gcuda_fp16_t d, dmin;
};

// Integer scales for the sub-scales s (all >= 0). Returns the common factor.
static float gcudai_scale_codes(int n, int max, const float * s, uint8_t * codes) {
    float top = 0.0f;
    for (int g = 0; g < n; ++g) { top = s[g] > top ? s[g] : top; }
    const float is = top > 0.0f ? (float) max / top : 0.0f;
    for (int g = 0; g < n; ++g) { codes[g] = (uint8_t) gcudai_nearest(is * s[g], 0, max); }
    return top > 0.0f ? top / (float) max : 0.0f;
}

static void gcudai_affine_weights(const float * x, const float * importance, float variance,
                                  const struct gcudai_affine_format * f, float * w) {
    if (importance != NULL) {
        gcudai_weigh(x, importance, variance, f->sub_len, w);
        return;
    }
    const float base = f->sub_len == 32 ? sqrtf(gcudai_mean_square(x, 32)) : 0.0f;
    for (int i = 0; i < f->sub_len; ++i) { w[i] = base + fabsf(x[i]); }
}

// Codes again, now with the scales as they will be read; a sub-block with scale 0 keeps the codes of the search.
static void gcudai_affine_requantize(const float * x, const struct gcudai_affine_format * f,
                                     struct gcudai_affine_block * b) {
    const float d = gcudai_fp16_to_fp32(b->d), dmin = gcudai_fp16_to_fp32(b->dmin);
    for (int g = 0; g < f->n_sub; ++g) {
        const float scale = d * (float) b->scales[g], min = dmin * (float) b->mins[g];
        if (scale == 0.0f) { continue; }
        for (int i = g * f->sub_len; i < (g + 1) * f->sub_len; ++i) {
            b->q[i] = (uint8_t) gcudai_nearest((x[i] + min) / scale, 0, f->max_code);
        }
    }
}

static void gcudai_quantize_affine(const float * x, const float * importance, const struct gcudai_affine_format * f,
                                   struct gcudai_affine_block * b) {
    static const struct gcudai_affine_rule weighted_rule = { -0.9f, 0.05f, 36, false, false };
    const float variance = importance == NULL ? 0.0f : (f->sub_len == 16 ? 1.0f : 2.0f) * gcudai_mean_square(x, 256);
    const struct gcudai_affine_rule * rule = importance != NULL ? &weighted_rule : &f->rule;
    float scales[16], mins[16], sums[16], d, dmin;
    for (int g = 0; g < f->n_sub; ++g) {
        const int at = g * f->sub_len;
        float w[32];
        gcudai_affine_weights(x + at, importance != NULL ? importance + at : NULL, variance, f, w);
        sums[g] = gcudai_sum(w, f->sub_len);
        scales[g] = gcudai_search_affine(f->sub_len, f->max_code, x + at, w, rule, b->q + at, &mins[g]);
    }
    if (importance != NULL) {
        d = gcudai_search_positive(f->n_sub, f->max_scale, scales, sums, b->scales);
        dmin = gcudai_search_positive(f->n_sub, f->max_scale, mins, sums, b->mins);
    } else {
        d = gcudai_scale_codes(f->n_sub, f->max_scale, scales, b->scales);
        dmin = gcudai_scale_codes(f->n_sub, f->max_scale, mins, b->mins);
    }
    b->d = gcudai_fp32_to_fp16(d);
    b->dmin = gcudai_fp32_to_fp16(dmin);
    gcudai_affine_requantize(x, f, b);
}

// Four 2-bit codes in a byte: element l of a half with those 32, 64 and 96 places on.
static void gcudai_pack_2bit(const uint8_t * q, uint8_t * qs) {
    for (int i = 0; i < 64; ++i) {
        const uint8_t * p = q + 128 * (i / 32) + i % 32;
        qs[i] = (uint8_t) ((p[0] & 3u) | (p[32] & 3u) << 2 | (p[64] & 3u) << 4 | (p[96] & 3u) << 6);
    }
}

// Two 4-bit codes in a byte: element l of 64 with that 32 places on.
static void gcudai_pack_4bit(const uint8_t * q, uint8_t * qs) {
    for (int i = 0; i < 128; ++i) {
        const uint8_t * p = q + 64 * (i / 32) + i % 32;
        qs[i] = (uint8_t) ((p[0] & 15u) | (p[32] & 15u) << 4);
    }
}

static void gcudai_pack_k_scales(const uint8_t * scales, const uint8_t * mins, uint8_t * p) {
    for (int g = 0; g < 4; ++g) {
        p[g] = (uint8_t) (scales[g] | (uint32_t) (scales[g + 4] >> 4) << 6);
        p[g + 4] = (uint8_t) (mins[g] | (uint32_t) (mins[g + 4] >> 4) << 6);
        p[g + 8] = (uint8_t) ((scales[g + 4] & 15u) | (mins[g + 4] & 15u) << 4);
    }
}

// The functions named _weighted take the importance of each column of the block row, or NULL.
static void gcudai_quantize_weighted_q2_k(const float * x, void * y, int64_t n, const float * importance) {
    static const struct gcudai_affine_format format = { 16, 16, 3, 15, { -0.5f, 0.1f, 15, true, false } };
    struct gcuda_block_q2_k * b = (struct gcuda_block_q2_k *) y;
    for (int64_t i = 0; i < n; i += 256, ++b) {
        struct gcudai_affine_block t;
        gcudai_quantize_affine(x + i, importance != NULL ? importance + i : NULL, &format, &t);
        for (int g = 0; g < 16; ++g) { b->scales[g] = (uint8_t) (t.scales[g] | (uint32_t) t.mins[g] << 4); }
        gcudai_pack_2bit(t.q, b->qs);
        b->d = t.d;
        b->dmin = t.dmin;
    }
}

static void gcudai_quantize_weighted_q4_k(const float * x, void * y, int64_t n, const float * importance) {
    static const struct gcudai_affine_format format = { 8, 32, 15, 63, { -1.0f, 0.1f, 20, false, false } };
    struct gcuda_block_q4_k * b = (struct gcuda_block_q4_k *) y;
    for (int64_t i = 0; i < n; i += 256, ++b) {
        struct gcudai_affine_block t;
        gcudai_quantize_affine(x + i, importance != NULL ? importance + i : NULL, &format, &t);
        b->d = t.d;
        b->dmin = t.dmin;
        gcudai_pack_k_scales(t.scales, t.mins, b->scales);
        gcudai_pack_4bit(t.q, b->qs);
    }
}

static void gcudai_quantize_weighted_q5_k(const float * x, void * y, int64_t n, const float * importance) {
    static const struct gcudai_affine_format format = { 8, 32, 31, 63, { -0.5f, 0.1f, 15, false, false } };
    struct gcuda_block_q5_k * b = (struct gcuda_block_q5_k *) y;
    for (int64_t i = 0; i < n; i += 256, ++b) {
        struct gcudai_affine_block t;
        gcudai_quantize_affine(x + i, importance != NULL ? importance + i : NULL, &format, &t);
        b->d = t.d;
        b->dmin = t.dmin;
        gcudai_pack_k_scales(t.scales, t.mins, b->scales);
        gcudai_pack_4bit(t.q, b->qs);
        for (int j = 0; j < 32; ++j) {
            uint32_t h = 0;
            for (int g = 0; g < 8; ++g) { h |= ((uint32_t) t.q[32 * g + j] >> 4) << g; }
            b->qh[j] = (uint8_t) h;
        }
    }
}

// Codes -max .. max - 1 with the scales as they will be read, stored with max added.
static void gcudai_symmetric_requantize(const float * x, int max, gcuda_fp16_t d, const int8_t * scales, int8_t * q) {
    for (int g = 0; g < 16; ++g) {
        const float scale = gcudai_fp16_to_fp32(d) * (float) scales[g];
        if (scale == 0.0f) { continue; }
        for (int i = 16 * g; i < 16 * g + 16; ++i) { q[i] = (int8_t) gcudai_nearest(x[i] / scale, -max, max - 1); }
    }
}

// Sixteen 6-bit scales of Q3_K; the inverse of gcudai_unpack_q3_k_scales.
static void gcudai_pack_q3_k_scales(const int8_t * scales, uint8_t * p) {
    memset(p, 0, 12);
    for (int g = 0; g < 16; ++g) {
        const uint32_t s = (uint32_t) (scales[g] + 32);
        p[g % 8] = (uint8_t) (p[g % 8] | (s & 15u) << 4 * (g / 8));
        p[8 + g % 4] = (uint8_t) (p[8 + g % 4] | (s >> 4) << 2 * (g / 4));
    }
}

// Sub-scales and codes of one block. Returns the common factor d.
static float gcudai_fit_q3_k(const float * x, const float * importance, int8_t * scales, int8_t * q) {
    float s[16], sums[16];
    const float variance = importance == NULL ? 0.0f : 2.0f * gcudai_mean_square(x, 256);
    for (int g = 0; g < 16; ++g) {
        if (importance == NULL) {
            s[g] = gcudai_search_descent(16, 4, x + 16 * g, q + 16 * g);
            continue;
        }
        float w[16];
        gcudai_weigh(x + 16 * g, importance + 16 * g, variance, 16, w);
        sums[g] = gcudai_sum(w, 16);
        s[g] = gcudai_search_symmetric(16, 4, x + 16 * g, w, q + 16 * g);
    }
    if (importance != NULL) { return gcudai_search_symmetric(16, 32, s, sums, scales); }
    const float extreme = gcudai_extreme(s, 16), is = extreme != 0.0f ? -32.0f / extreme : 0.0f;
    for (int g = 0; g < 16; ++g) { scales[g] = (int8_t) (is != 0.0f ? gcudai_nearest(is * s[g], -32, 31) : -32); }
    return is != 0.0f ? 1.0f / is : 0.0f;
}

static void gcudai_quantize_weighted_q3_k(const float * x, void * y, int64_t n, const float * importance) {
    struct gcuda_block_q3_k * b = (struct gcuda_block_q3_k *) y;
    for (int64_t i = 0; i < n; i += 256, ++b) {
        int8_t scales[16], q[256];
        uint8_t stored[256];
        b->d = gcudai_fp32_to_fp16(gcudai_fit_q3_k(x + i, importance != NULL ? importance + i : NULL, scales, q));
        gcudai_symmetric_requantize(x + i, 4, b->d, scales, q);
        gcudai_pack_q3_k_scales(scales, b->scales);
        for (int j = 0; j < 256; ++j) { stored[j] = (uint8_t) (q[j] + 4); }
        gcudai_pack_2bit(stored, b->qs);
        for (int j = 0; j < 32; ++j) {
            uint32_t h = 0;
            for (int g = 0; g < 8; ++g) { h |= ((uint32_t) stored[32 * g + j] >> 2) << g; }
            b->hmask[j] = (uint8_t) h;
        }
    }
}

static void gcudai_pack_q6_k(const int8_t * q, struct gcuda_block_q6_k * b) {
    uint8_t stored[256];
    for (int j = 0; j < 256; ++j) { stored[j] = (uint8_t) (q[j] + 32); }
    for (int i = 0; i < 128; ++i) { // elements 64 apart share a byte
        const uint8_t * p = stored + 128 * (i / 64) + i % 64;
        b->ql[i] = (uint8_t) ((p[0] & 15u) | (p[64] & 15u) << 4);
    }
    for (int j = 0; j < 256; ++j) { stored[j] >>= 4; }
    gcudai_pack_2bit(stored, b->qh);
}

static void gcudai_quantize_weighted_q6_k(const float * x, void * y, int64_t n, const float * importance) {
    struct gcuda_block_q6_k * b = (struct gcuda_block_q6_k *) y;
    for (int64_t i = 0; i < n; i += 256, ++b) {
        int8_t q[256];
        float s[16], w[16];
        for (int g = 0; g < 16; ++g) {
            const float * p = x + i + 16 * g;
            for (int j = 0; j < 16; ++j) { w[j] = importance != NULL ? importance[i + 16 * g + j] : p[j] * p[j]; }
            s[g] = gcudai_search_symmetric(16, 32, p, w, q + 16 * g);
        }
        const float extreme = gcudai_extreme(s, 16);
        if (fabsf(extreme) < GCUDAI_TINY_BLOCK) {
            memset(b, 0, sizeof *b);
            continue;
        }
        const float is = -128.0f / extreme;
        for (int g = 0; g < 16; ++g) { b->scales[g] = (int8_t) gcudai_nearest(is * s[g], -128, 127); }
        b->d = gcudai_fp32_to_fp16(1.0f / is);
        gcudai_symmetric_requantize(x + i, 32, b->d, b->scales, q);
        gcudai_pack_q6_k(q, b);
    }
}

static void gcudai_quantize_row_q2_k(const float * x, void * y, int64_t n) {
    gcudai_quantize_weighted_q2_k(x, y, n, NULL);
}

static void gcudai_quantize_row_q3_k(const float * x, void * y, int64_t n) {
    gcudai_quantize_weighted_q3_k(x, y, n, NULL);
}

static void gcudai_quantize_row_q4_k(const float * x, void * y, int64_t n) {
    gcudai_quantize_weighted_q4_k(x, y, n, NULL);
}

static void gcudai_quantize_row_q5_k(const float * x, void * y, int64_t n) {
    gcudai_quantize_weighted_q5_k(x, y, n, NULL);
}

static void gcudai_quantize_row_q6_k(const float * x, void * y, int64_t n) {
    gcudai_quantize_weighted_q6_k(x, y, n, NULL);
}

// ---- IQ4_NL and IQ4_XS with a search (quants.md 6.4) -----------------------------------------------
// Weights are x^2, or come from the importance and the mean square of the block. Returns the unrounded scale.
static float gcudai_search_iq4nl(const float * x, const float * importance, float variance) {
    const float extreme = gcudai_extreme(x, 32);
    if (fabsf(extreme) < GCUDAI_TINY_BLOCK) { return 0.0f; }
    float w[32], a, b;
    uint8_t q[32];
    if (importance != NULL) {
        gcudai_weigh(x, importance, variance, 32, w);
    } else {
        for (int j = 0; j < 32; ++j) { w[j] = x[j] * x[j]; }
    }
    gcudai_codes_iq4nl(x, w, gcudai_reciprocal(extreme / 127.0f), q, &a, &b);
    float scale = b > 0.0f ? a / b : 0.0f, best = scale * a;
    for (int k = -7; k <= 7; ++k) {
        gcudai_codes_iq4nl(x, w, (float) (k - 127) / extreme, q, &a, &b);
        if (b > 0.0f && a * a > best * b) {
            scale = a / b;
            best = scale * a;
        }
    }
    return scale;
}

static void gcudai_put_iq4nl_codes(const float * x, float is, uint8_t * qs) {
    uint8_t q[32];
    for (int j = 0; j < 32; ++j) { q[j] = (uint8_t) gcudai_nearest_iq4nl(is * x[j]); }
    gcudai_pack_nibbles(q, qs);
}

static void gcudai_quantize_weighted_iq4_nl(const float * x, void * y, int64_t n, const float * importance) {
    struct gcuda_block_iq4_nl * b = (struct gcuda_block_iq4_nl *) y;
    for (int64_t i = 0; i < n; i += 32, ++b) {
        const float scale = gcudai_search_iq4nl(x + i, importance != NULL ? importance + i : NULL,
                                                2.0f * gcudai_mean_square(x + i, 32));
        b->d = gcudai_fp32_to_fp16(scale);
        gcudai_put_iq4nl_codes(x + i, gcudai_reciprocal(scale), b->qs);
    }
}

static void gcudai_quantize_weighted_iq4_xs(const float * x, void * y, int64_t n, const float * importance) {
    struct gcuda_block_iq4_xs * b = (struct gcuda_block_iq4_xs *) y;
    for (int64_t i = 0; i < n; i += 256, ++b) {
        const float variance = 2.0f * gcudai_mean_square(x + i, 256);
        float s[8];
        for (int g = 0; g < 8; ++g) {
            const int64_t at = i + 32 * g;
            s[g] = gcudai_search_iq4nl(x + at, importance != NULL ? importance + at : NULL, variance);
        }
        const float d = -gcudai_extreme(s, 8) / 32.0f, id = gcudai_reciprocal(d);
        memset(b, 0, sizeof *b);
        b->d = gcudai_fp32_to_fp16(d);
        for (int g = 0; g < 8; ++g) {
            const int scale = gcudai_nearest(id * s[g], -32, 31);
            const uint32_t stored = (uint32_t) (scale + 32);
            b->scales_l[g / 2] = (uint8_t) (b->scales_l[g / 2] | (stored & 15u) << 4 * (g % 2));
            b->scales_h = (uint16_t) (b->scales_h | (stored >> 4) << 2 * g);
            gcudai_put_iq4nl_codes(x + i + 32 * g, gcudai_reciprocal(d * (float) scale), b->qs + 16 * g);
        }
    }
}

static void gcudai_quantize_row_iq4_xs(const float * x, void * y, int64_t n) {
    gcudai_quantize_weighted_iq4_xs(x, y, n, NULL);
}

// ---- blocks of 32 with importance (end of quants.md 3.1) -------------------------------------------
static float gcudai_weighted_symmetric(const float * x, const float * importance, float variance, int max,
                                       uint8_t * q) {
    float w[32];
    int8_t signed_q[32];
    gcudai_weigh(x, importance, variance, 32, w);
    const float d = gcudai_search_symmetric(32, max, x, w, signed_q);
    for (int j = 0; j < 32; ++j) { q[j] = (uint8_t) (signed_q[j] + max); }
    return d;
}

static float gcudai_weighted_affine(const float * x, const float * importance, float variance, int max, uint8_t * q,
                                    float * min) {
    static const struct gcudai_affine_rule rule = { -0.9f, 0.05f, 36, false, true };
    float w[32];
    gcudai_weigh(x, importance, variance, 32, w);
    const float d = gcudai_search_affine(32, max, x, w, &rule, q, min);
    *min = -*min;
    return d;
}

static void gcudai_quantize_weighted_q4_0(const float * x, void * y, int64_t n, const float * importance) {
    struct gcuda_block_q4_0 * b = (struct gcuda_block_q4_0 *) y;
    const float variance = gcudai_mean_square(x, n);
    for (int64_t i = 0; i < n; i += 32, ++b) {
        uint8_t q[32];
        b->d = gcudai_fp32_to_fp16(gcudai_weighted_symmetric(x + i, importance + i, variance, 8, q));
        gcudai_pack_nibbles(q, b->qs);
    }
}

static void gcudai_quantize_weighted_q4_1(const float * x, void * y, int64_t n, const float * importance) {
    struct gcuda_block_q4_1 * b = (struct gcuda_block_q4_1 *) y;
    const float variance = gcudai_mean_square(x, n);
    for (int64_t i = 0; i < n; i += 32, ++b) {
        uint8_t q[32];
        float min;
        b->d = gcudai_fp32_to_fp16(gcudai_weighted_affine(x + i, importance + i, variance, 15, q, &min));
        b->m = gcudai_fp32_to_fp16(min);
        gcudai_pack_nibbles(q, b->qs);
    }
}

static void gcudai_quantize_weighted_q5_0(const float * x, void * y, int64_t n, const float * importance) {
    struct gcuda_block_q5_0 * b = (struct gcuda_block_q5_0 *) y;
    const float variance = gcudai_mean_square(x, n);
    for (int64_t i = 0; i < n; i += 32, ++b) {
        uint8_t q[32];
        b->d = gcudai_fp32_to_fp16(gcudai_weighted_symmetric(x + i, importance + i, variance, 16, q));
        gcudai_pack_q5(q, b->qh, b->qs);
    }
}

static void gcudai_quantize_weighted_q5_1(const float * x, void * y, int64_t n, const float * importance) {
    struct gcuda_block_q5_1 * b = (struct gcuda_block_q5_1 *) y;
    const float variance = gcudai_mean_square(x, n);
    for (int64_t i = 0; i < n; i += 32, ++b) {
        uint8_t q[32];
        float min;
        b->d = gcudai_fp32_to_fp16(gcudai_weighted_affine(x + i, importance + i, variance, 31, q, &min));
        b->m = gcudai_fp32_to_fp16(min);
        gcudai_pack_q5(q, b->qh, b->qs);
    }
}

// ---- many rows -------------------------------------------------------------------------------------
typedef void (*gcudai_weighted_t)(const float * x, void * y, int64_t n, const float * importance);

static gcudai_weighted_t gcudai_weighted_quantizer(enum gcuda_type type) {
    switch ((int) type) {
        case GCUDA_TYPE_Q4_0: return gcudai_quantize_weighted_q4_0;
        case GCUDA_TYPE_Q4_1: return gcudai_quantize_weighted_q4_1;
        case GCUDA_TYPE_Q5_0: return gcudai_quantize_weighted_q5_0;
        case GCUDA_TYPE_Q5_1: return gcudai_quantize_weighted_q5_1;
        case GCUDA_TYPE_Q2_K: return gcudai_quantize_weighted_q2_k;
        case GCUDA_TYPE_Q3_K: return gcudai_quantize_weighted_q3_k;
        case GCUDA_TYPE_Q4_K: return gcudai_quantize_weighted_q4_k;
        case GCUDA_TYPE_Q5_K: return gcudai_quantize_weighted_q5_k;
        case GCUDA_TYPE_Q6_K: return gcudai_quantize_weighted_q6_k;
        case GCUDA_TYPE_IQ4_NL: return gcudai_quantize_weighted_iq4_nl;
        case GCUDA_TYPE_IQ4_XS: return gcudai_quantize_weighted_iq4_xs;
        default: return NULL;
    }
}

struct gcudai_quantize_job {
    const float * src;
    char * dst;
    int64_t n_rows, n_per_row, rows_per_turn;
    size_t row_bytes;
    const float * imatrix;
    gcuda_from_float_t plain;
    gcudai_weighted_t weighted; // instead of plain, if not NULL
    gcudai_atomic_i64 next;     // row
};

// Takes the next few rows until none is left; run by every thread.
static void gcudai_quantize_worker(void * arg) {
    struct gcudai_quantize_job * job = (struct gcudai_quantize_job *) arg;
    for (;;) {
        const int64_t first = gcudai_atomic_add_i64(&job->next, job->rows_per_turn);
        if (first >= job->n_rows) { return; }
        const int64_t n = job->n_rows - first < job->rows_per_turn ? job->n_rows - first : job->rows_per_turn;
        for (int64_t r = first; r < first + n; ++r) {
            const float * x = job->src + r * job->n_per_row;
            char * y = job->dst + (size_t) r * job->row_bytes;
            if (job->weighted != NULL) {
                job->weighted(x, y, job->n_per_row, job->imatrix);
            } else {
                job->plain(x, y, job->n_per_row);
            }
        }
    }
}

// Everything about a job but its data; the sizes of start, src and dst are checked as well.
static gcuda_status gcudai_quantize_prepare(struct gcudai_quantize_job * job, enum gcuda_type type, int64_t start,
                                            int64_t n_rows, int64_t n_per_row, const float * imatrix) {
    const struct gcuda_type_traits * t = gcuda_get_type_traits(type);
    int64_t n = 0;
    size_t bytes = 0;
    GCUDAI_ZERO(*job);
    if (t == NULL || t->from_float_ref == NULL) {
        return gcudai_fail(GCUDA_STATUS_UNSUPPORTED, "quantize: cannot make %s (type %d)", gcuda_type_name(type),
                           (int) type);
    }
    if (n_rows < 0 || n_per_row <= 0 || n_per_row % t->blck_size != 0) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT,
                           "quantize: %lld rows of %lld elements are not rows of whole %s blocks of %lld", (long long) n_rows,
                           (long long) n_per_row, t->type_name, (long long) t->blck_size);
    }
    if (start < 0 || start % n_per_row != 0) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "quantize: start %lld is not the start of a row of %lld",
                           (long long) start, (long long) n_per_row);
    }
    job->row_bytes = gcuda_row_size(type, n_per_row);
    if (!gcudai_mul_i64(n_rows, n_per_row, &n) || !gcudai_add_i64(n, start, &n) || n > INT64_MAX / 8 ||
        !gcudai_mul_size((size_t) n, sizeof(float), &bytes) ||
        !gcudai_mul_size((size_t) (n / n_per_row), job->row_bytes, &bytes)) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT,
                           "quantize: %lld rows of %lld elements from %lld on are too many bytes", (long long) n_rows,
                           (long long) n_per_row, (long long) start);
    }
    job->n_rows = n_rows;
    job->n_per_row = n_per_row;
    job->rows_per_turn = 1 + 16384 / n_per_row;
    job->imatrix = imatrix;
    job->plain = t->from_float_ref;
    // without importance the weighted function of IQ4_NL is the search, and its plain one the quick rule
    job->weighted = imatrix != NULL || type == GCUDA_TYPE_IQ4_NL ? gcudai_weighted_quantizer(type) : NULL;
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_quantize_set_data(struct gcudai_quantize_job * job, enum gcuda_type type, int64_t start,
                                             const float * src, void * dst) {
    const bool holds_floats = type == GCUDA_TYPE_F32 || type == GCUDA_TYPE_Q8_K;
    const uintptr_t alignment = holds_floats ? sizeof(float) : type == GCUDA_TYPE_MXFP4 ? 1 : sizeof(gcuda_fp16_t);
    if (job->n_rows == 0) { return GCUDA_STATUS_SUCCESS; }
    if (src == NULL || dst == NULL) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "quantize: %s is NULL", src == NULL ? "src" : "dst");
    }
    if ((uintptr_t) src % sizeof(float) != 0 || (uintptr_t) dst % alignment != 0) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT,
                           "quantize: src %p or dst %p is not aligned for floats and %s blocks", (const void *) src,
                           dst, gcuda_type_name(type));
    }
    job->src = src + start;
    job->dst = (char *) dst + (size_t) (start / job->n_per_row) * job->row_bytes;
    return GCUDA_STATUS_SUCCESS;
}

size_t gcuda_quantize_chunk(enum gcuda_type type, const float * src, void * dst, int64_t start, int64_t n_rows,
                            int64_t n_per_row, const float * imatrix) {
    struct gcudai_quantize_job job;
    if (gcudai_quantize_prepare(&job, type, start, n_rows, n_per_row, imatrix) != GCUDA_STATUS_SUCCESS ||
        gcudai_quantize_set_data(&job, type, start, src, dst) != GCUDA_STATUS_SUCCESS) {
        return 0;
    }
    gcudai_quantize_worker(&job);
    return (size_t) n_rows * job.row_bytes;
}

gcuda_status gcuda_quantize_rows(enum gcuda_type type, const float * src, void * dst, int64_t n_rows, int64_t n_per_row,
                                 const float * imatrix, int n_threads) {
    enum { max_threads = 64 };
    struct gcudai_quantize_job job;
    gcudai_thread threads[max_threads];
    int n_started = 0;
    GCUDAI_TRY(gcudai_quantize_prepare(&job, type, 0, n_rows, n_per_row, imatrix));
    GCUDAI_TRY(gcudai_quantize_set_data(&job, type, 0, src, dst));
    const int64_t turns = n_rows / job.rows_per_turn + (n_rows % job.rows_per_turn != 0);
    int64_t wanted = n_threads > 0 ? n_threads : gcudai_cpu_count();
    wanted = wanted < turns ? wanted : turns;
    // this thread works too, and alone if the system has no other to give
    while (n_started < max_threads && n_started < wanted - 1 &&
           gcudai_thread_start(&threads[n_started], gcudai_quantize_worker, &job)) {
        n_started++;
    }
    gcudai_quantize_worker(&job);
    for (int i = 0; i < n_started; ++i) { gcudai_thread_join(&threads[i]); }
    return GCUDA_STATUS_SUCCESS;
}

bool gcuda_quantize_requires_imatrix(enum gcuda_type type) {
    return type == GCUDA_TYPE_IQ2_XXS || type == GCUDA_TYPE_IQ2_XS || type == GCUDA_TYPE_IQ1_S;
}

// ---- validation ------------------------------------------------------------------------------------
// Where the floats of a block are whose exponent must not be all ones: `width` bytes at at[0] and at[1].
struct gcudai_block_floats {
    int n, width;
    size_t at[2];
    uint64_t exponent; // its mask
};

static struct gcudai_block_floats gcudai_floats_of_block(enum gcuda_type type) {
    struct gcudai_block_floats f = { 1, 2, { 0, 0 }, 0x7c00u }; // most formats: F16 at 0
    switch ((int) type) {
        case GCUDA_TYPE_F32:
        case GCUDA_TYPE_Q8_K: f.width = 4; f.exponent = 0x7f800000u; break;
        case GCUDA_TYPE_F64: f.width = 8; f.exponent = 0x7ff0000000000000ull; break;
        case GCUDA_TYPE_BF16: f.exponent = 0x7f80u; break;
        case GCUDA_TYPE_MXFP4: f.width = 1; f.exponent = 0xffu; break;
        case GCUDA_TYPE_Q4_1:
        case GCUDA_TYPE_Q5_1:
        case GCUDA_TYPE_Q4_K:
        case GCUDA_TYPE_Q5_K: f.n = 2; f.at[1] = 2; break;
        case GCUDA_TYPE_Q2_K: f.n = 2; f.at[0] = offsetof(struct gcuda_block_q2_k, d); f.at[1] = f.at[0] + 2; break;
        case GCUDA_TYPE_Q3_K: f.at[0] = offsetof(struct gcuda_block_q3_k, d); break;
        case GCUDA_TYPE_Q6_K: f.at[0] = offsetof(struct gcuda_block_q6_k, d); break;
        case GCUDA_TYPE_IQ1_M: // one nibble in each of four words; the exponent begins in the third
            f.width = 8;
            f.at[0] = offsetof(struct gcuda_block_iq1_m, scales);
            f.exponent = 0x7000c00000000000ull;
            break;
        case GCUDA_TYPE_I8:
        case GCUDA_TYPE_I16:
        case GCUDA_TYPE_I32:
        case GCUDA_TYPE_I64: f.n = 0; break;
        default: break;
    }
    return f;
}

static bool gcudai_block_is_finite(const uint8_t * p, const struct gcudai_block_floats * f) {
    for (int k = 0; k < f->n; ++k) {
        uint64_t bits = 0;
        for (int i = 0; i < f->width; ++i) { bits |= (uint64_t) p[f->at[k] + (size_t) i] << 8 * i; }
        if ((bits & f->exponent) == f->exponent) { return false; }
    }
    return true;
}

gcuda_status gcuda_check_row_data(enum gcuda_type type, const void * data, size_t n_bytes, int64_t * bad_block) {
    const struct gcuda_type_traits * t = gcuda_get_type_traits(type);
    if (bad_block != NULL) { *bad_block = -1; }
    if (t == NULL) { return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "validate: type %d is invalid", (int) type); }
    if (n_bytes % t->type_size != 0 || (data == NULL && n_bytes != 0)) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "validate: %llu bytes at %p are not whole %s blocks of %llu",
                           (unsigned long long) n_bytes, data, t->type_name, (unsigned long long) t->type_size);
    }
    const struct gcudai_block_floats floats = gcudai_floats_of_block(type);
    const size_t n = n_bytes / t->type_size;
    for (size_t i = 0; i < n; ++i) {
        if (gcudai_block_is_finite((const uint8_t *) data + i * t->type_size, &floats)) { continue; }
        if (bad_block != NULL) { *bad_block = (int64_t) i; }
        return gcudai_fail(GCUDA_STATUS_INVALID_DATA, "validate: %s block %llu of %llu holds NaN or infinity",
                           t->type_name, (unsigned long long) i, (unsigned long long) n);
    }
    return GCUDA_STATUS_SUCCESS;
}

bool gcuda_validate_row_data(enum gcuda_type type, const void * data, size_t n_bytes) {
    return gcuda_check_row_data(type, data, n_bytes, NULL) == GCUDA_STATUS_SUCCESS;
}

// =====================================================================================================
// >>impl-types   type table
// =====================================================================================================

static void gcudai_dequantize_row_f32(const void * x, float * y, int64_t n) { memcpy(y, x, (size_t) n * sizeof(float)); }
static void gcudai_quantize_row_f32(const float * x, void * y, int64_t n) { memcpy(y, x, (size_t) n * sizeof(float)); }
static void gcudai_dequantize_row_f16(const void * x, float * y, int64_t n) { gcuda_fp16_to_fp32_row((const gcuda_fp16_t *) x, y, n); }
static void gcudai_quantize_row_f16(const float * x, void * y, int64_t n) { gcuda_fp32_to_fp16_row(x, (gcuda_fp16_t *) y, n); }
static void gcudai_dequantize_row_bf16(const void * x, float * y, int64_t n) { gcuda_bf16_to_fp32_row((const gcuda_bf16_t *) x, y, n); }
static void gcudai_quantize_row_bf16(const float * x, void * y, int64_t n) { gcuda_fp32_to_bf16_row(x, (gcuda_bf16_t *) y, n); }

static void gcudai_dequantize_row_f64(const void * x, float * y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        double v;
        memcpy(&v, (const char *) x + (size_t) i * sizeof(v), sizeof(v));
        y[i] = (float) v;
    }
}

static void gcudai_quantize_row_f64(const float * x, void * y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        const double v = (double) x[i];
        memcpy((char *) y + (size_t) i * sizeof(v), &v, sizeof(v));
    }
}


// Integers have no float form.
#define gcudai_dequantize_row_i8 NULL
#define gcudai_dequantize_row_i16 NULL
#define gcudai_dequantize_row_i32 NULL
#define gcudai_dequantize_row_i64 NULL
#define gcudai_quantize_row_i8 NULL
#define gcudai_quantize_row_i16 NULL
#define gcudai_quantize_row_i32 NULL
#define gcudai_quantize_row_i64 NULL
// Codebook formats are only read.
#define gcudai_quantize_row_iq2_xxs NULL
#define gcudai_quantize_row_iq2_xs NULL
#define gcudai_quantize_row_iq3_xxs NULL
#define gcudai_quantize_row_iq1_s NULL
#define gcudai_quantize_row_iq3_s NULL
#define gcudai_quantize_row_iq2_s NULL
#define gcudai_quantize_row_iq1_m NULL

const struct gcuda_type_traits * gcuda_get_type_traits(enum gcuda_type type) {
    switch ((int) type) { // an untrusted number: ids in between are retired
#define X(ID, id, lower, name, block, bytes, quantized)                                          \
    case id: {                                                                                   \
        static const struct gcuda_type_traits traits = {                                         \
            name, block, bytes, (quantized) != 0, gcudai_dequantize_row_##lower, gcudai_quantize_row_##lower \
        };                                                                                       \
        return &traits;                                                                          \
    }
        GCUDA_TYPES(X)
#undef X
        default: return NULL;
    }
}

bool gcuda_type_is_valid(enum gcuda_type type) { return gcuda_get_type_traits(type) != NULL; }

const char * gcuda_type_name(enum gcuda_type type) {
    const struct gcuda_type_traits * t = gcuda_get_type_traits(type);
    return t ? t->type_name : "invalid";
}

int64_t gcuda_blck_size(enum gcuda_type type) {
    const struct gcuda_type_traits * t = gcuda_get_type_traits(type);
    return t ? t->blck_size : 0;
}

size_t gcuda_type_size(enum gcuda_type type) {
    const struct gcuda_type_traits * t = gcuda_get_type_traits(type);
    return t ? t->type_size : 0;
}

size_t gcuda_row_size(enum gcuda_type type, int64_t ne) {
    const struct gcuda_type_traits * t = gcuda_get_type_traits(type);
    size_t size = 0;
    if (t == NULL || ne < 0 || ne % t->blck_size != 0 || !gcudai_mul_size((size_t) (ne / t->blck_size), t->type_size, &size)) {
        return 0;
    }
    return size;
}

bool gcuda_is_quantized(enum gcuda_type type) {
    const struct gcuda_type_traits * t = gcuda_get_type_traits(type);
    return t != NULL && t->is_quantized;
}

static bool gcudai_is_float(enum gcuda_type type) {
    return type == GCUDA_TYPE_F32 || type == GCUDA_TYPE_F16 || type == GCUDA_TYPE_BF16;
}

// Elements of F32, F16 or BF16 with any stride, to float and back. n at most GCUDAI_PIECE keeps buffers on the stack.
#define GCUDAI_PIECE 256
static void gcudai_load(enum gcuda_type type, const char * p, size_t nb0, int64_t n, float * out) {
    const struct gcuda_type_traits * t = gcuda_get_type_traits(type);
    if (nb0 == t->type_size) {
        t->to_float(p, out, n);
        return;
    }
    for (int64_t i = 0; i < n; ++i) {
        t->to_float(p + (size_t) i * nb0, out + i, 1);
    }
}

static void gcudai_store(enum gcuda_type type, char * p, size_t nb0, int64_t n, const float * in) {
    const struct gcuda_type_traits * t = gcuda_get_type_traits(type);
    if (nb0 == t->type_size) {
        t->from_float_ref(in, p, n);
        return;
    }
    for (int64_t i = 0; i < n; ++i) {
        t->from_float_ref(in + i, p + (size_t) i * nb0, 1);
    }
}

GCUDAI_UNUSED static gcuda_to_float_t gcudai_to_float(enum gcuda_type type) {
    const struct gcuda_type_traits * t = gcuda_get_type_traits(type);
    return t ? t->to_float : NULL;
}

// =====================================================================================================
// >>impl-tensor   contexts, tensors, views
// =====================================================================================================

// Layout from shape, the one place where sizes are computed: fills contiguous strides and the bytes they span.
static gcuda_status gcudai_layout(enum gcuda_type type, const int64_t * ne, size_t * nb, size_t * n_bytes) {
    const struct gcuda_type_traits * t = gcuda_get_type_traits(type);
    if (t == NULL) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "type %d does not exist", (int) type);
    }
    bool is_ok = true;
    int64_t n_elements = 1;
    for (int i = 0; i < GCUDA_MAX_DIMS; ++i) {
        is_ok = is_ok && ne[i] >= 0;
    }
    if (is_ok && ne[0] % t->blck_size != 0) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "rows of %lld elements are not whole blocks of %lld (%s)",
                           (long long) ne[0], (long long) t->blck_size, t->type_name);
    }
    nb[0] = t->type_size;
    is_ok = is_ok && gcudai_mul_size(nb[0], (size_t) (ne[0] / t->blck_size), &nb[1]);
    is_ok = is_ok && gcudai_mul_size(nb[1], (size_t) ne[1], &nb[2]);
    is_ok = is_ok && gcudai_mul_size(nb[2], (size_t) ne[2], &nb[3]);
    is_ok = is_ok && gcudai_mul_size(nb[3], (size_t) ne[3], n_bytes);
    for (int i = 0; i < GCUDA_MAX_DIMS && is_ok; ++i) {
        is_ok = gcudai_mul_i64(n_elements, ne[i], &n_elements);
    }
    if (!is_ok || *n_bytes > (size_t) PTRDIFF_MAX) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "shape [%lld, %lld, %lld, %lld] of type %s is negative or too large",
                           (long long) ne[0], (long long) ne[1], (long long) ne[2], (long long) ne[3], t->type_name);
    }
    return GCUDA_STATUS_SUCCESS;
}

// Addresses of a type's elements or blocks are multiples of this.
static size_t gcudai_type_align(enum gcuda_type type) {
    const size_t size = gcuda_type_size(type), align = size & (~size + 1), max = gcuda_is_quantized(type) ? 4 : 8;
    return align == 0 ? 1 : GCUDAI_MIN(align, max);
}

// Bytes a strided tensor spans, checked; also that type, shape and element count are sane.
static gcuda_status gcudai_span(const struct gcuda_tensor * t, size_t * n_bytes) {
    size_t nb[GCUDA_MAX_DIMS], dense = 0, span = 0, step = 0;
    GCUDAI_TRY(gcudai_layout(t->type, t->ne, nb, &dense));
    *n_bytes = 0;
    if (gcuda_is_empty(t)) {
        return GCUDA_STATUS_SUCCESS;
    }
    const int64_t block = gcuda_blck_size(t->type);
    bool is_ok = block > 1 ? gcudai_mul_size((size_t) (t->ne[0] / block), t->nb[0], &span)
                           : gcudai_mul_size((size_t) (t->ne[0] - 1), t->nb[0], &span) && gcudai_add_size(span, nb[0], &span);
    bool is_aligned = t->view_offs % gcudai_type_align(t->type) == 0;
    for (int i = 0; i < GCUDA_MAX_DIMS; ++i) {
        is_aligned = is_aligned && (t->ne[i] == 1 || t->nb[i] % gcudai_type_align(t->type) == 0);
        is_ok = is_ok && (i == 0 || (gcudai_mul_size((size_t) (t->ne[i] - 1), t->nb[i], &step) && gcudai_add_size(span, step, &span)));
    }
    if (!is_aligned) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "offset %llu or strides [%llu, %llu, %llu, %llu] are not multiples of %llu bytes (%s)",
                           (unsigned long long) t->view_offs, (unsigned long long) t->nb[0], (unsigned long long) t->nb[1], (unsigned long long) t->nb[2],
                           (unsigned long long) t->nb[3], (unsigned long long) gcudai_type_align(t->type), gcuda_type_name(t->type));
    }
    if (!is_ok || span > (size_t) PTRDIFF_MAX) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "strides [%llu, %llu, %llu, %llu] of shape [%lld, %lld, %lld, %lld] are too large",
                           (unsigned long long) t->nb[0], (unsigned long long) t->nb[1], (unsigned long long) t->nb[2], (unsigned long long) t->nb[3],
                           (long long) t->ne[0], (long long) t->ne[1], (long long) t->ne[2], (long long) t->ne[3]);
    }
    *n_bytes = span;
    return GCUDA_STATUS_SUCCESS;
}

size_t gcuda_nbytes(const struct gcuda_tensor * tensor) {
    const int64_t block = gcuda_blck_size(tensor->type);
    if (gcuda_is_empty(tensor) || block == 0) {
        return 0;
    }
    size_t n = block == 1 ? gcuda_type_size(tensor->type) + (size_t) (tensor->ne[0] - 1) * tensor->nb[0]
                          : (size_t) (tensor->ne[0] / block) * tensor->nb[0];
    for (int i = 1; i < GCUDA_MAX_DIMS; ++i) {
        n += (size_t) (tensor->ne[i] - 1) * tensor->nb[i];
    }
    return n;
}

size_t gcuda_nbytes_pad(const struct gcuda_tensor * tensor) { return gcudai_pad(gcuda_nbytes(tensor), GCUDA_MEM_ALIGN); }
size_t gcuda_element_size(const struct gcuda_tensor * tensor) { return gcuda_type_size(tensor->type); }
int64_t gcuda_nelements(const struct gcuda_tensor * t) { return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; }
int64_t gcuda_nrows(const struct gcuda_tensor * t) { return t->ne[1] * t->ne[2] * t->ne[3]; }

int gcuda_n_dims(const struct gcuda_tensor * tensor) {
    for (int i = GCUDA_MAX_DIMS - 1; i >= 1; --i) {
        if (tensor->ne[i] > 1) {
            return i + 1;
        }
    }
    return 1;
}

bool gcuda_is_empty(const struct gcuda_tensor * t) { return t->ne[0] <= 0 || t->ne[1] <= 0 || t->ne[2] <= 0 || t->ne[3] <= 0; }
bool gcuda_is_scalar(const struct gcuda_tensor * t) { return t->ne[0] == 1 && t->ne[1] == 1 && t->ne[2] == 1 && t->ne[3] == 1; }
bool gcuda_is_vector(const struct gcuda_tensor * t) { return t->ne[1] == 1 && t->ne[2] == 1 && t->ne[3] == 1; }
bool gcuda_is_matrix(const struct gcuda_tensor * t) { return t->ne[2] == 1 && t->ne[3] == 1; }
bool gcuda_is_3d(const struct gcuda_tensor * t) { return t->ne[3] == 1; }
bool gcuda_is_view(const struct gcuda_tensor * t) { return t->view_src != NULL; }
bool gcuda_is_transposed(const struct gcuda_tensor * t) { return t->nb[0] > t->nb[1]; }
bool gcuda_is_permuted(const struct gcuda_tensor * t) { return t->nb[0] > t->nb[1] || t->nb[1] > t->nb[2] || t->nb[2] > t->nb[3]; }

// Dimensions 1..n may be followed by a gap, everything above is dense (ops.md 1.4).
static bool gcudai_is_contiguous_n(const struct gcuda_tensor * t, int n) {
    const size_t block = (size_t) gcuda_blck_size(t->type);
    size_t expect = gcuda_type_size(t->type);
    if (block == 0 || ((size_t) t->ne[0] != block && t->nb[0] != expect)) {
        return false;
    }
    expect *= (size_t) t->ne[0] / block;
    for (int i = 1; i < GCUDA_MAX_DIMS; ++i) {
        if (i > n) {
            if (t->ne[i] != 1 && t->nb[i] != expect) {
                return false;
            }
            expect *= (size_t) t->ne[i];
        } else {
            expect = (size_t) t->ne[i] * t->nb[i];
        }
    }
    return true;
}

bool gcuda_is_contiguous(const struct gcuda_tensor * tensor) { return gcudai_is_contiguous_n(tensor, 0); }
bool gcuda_is_contiguous_0(const struct gcuda_tensor * tensor) { return gcudai_is_contiguous_n(tensor, 0); }
bool gcuda_is_contiguous_1(const struct gcuda_tensor * tensor) { return gcudai_is_contiguous_n(tensor, 1); }
bool gcuda_is_contiguous_2(const struct gcuda_tensor * tensor) { return gcudai_is_contiguous_n(tensor, 2); }

bool gcuda_is_contiguous_rows(const struct gcuda_tensor * t) {
    return t->ne[0] == gcuda_blck_size(t->type) || t->nb[0] == gcuda_type_size(t->type);
}

bool gcuda_is_contiguously_allocated(const struct gcuda_tensor * t) {
    const int64_t block = gcuda_blck_size(t->type);
    return block != 0 && gcuda_nbytes(t) == (size_t) (gcuda_nelements(t) / block) * gcuda_type_size(t->type);
}

bool gcuda_is_contiguous_channels(const struct gcuda_tensor * t) {
    return t->nb[0] > t->nb[2] && t->nb[1] > t->nb[0] && t->nb[2] == gcuda_type_size(t->type);
}

bool gcuda_is_padded_1d(const struct gcuda_tensor * t) {
    return t->nb[0] == gcuda_type_size(t->type) && t->nb[2] == t->nb[1] * (size_t) t->ne[1] && t->nb[3] == t->nb[2] * (size_t) t->ne[2];
}

bool gcuda_are_same_shape(const struct gcuda_tensor * a, const struct gcuda_tensor * b) { return memcmp(a->ne, b->ne, sizeof(a->ne)) == 0; }
bool gcuda_are_same_stride(const struct gcuda_tensor * a, const struct gcuda_tensor * b) { return memcmp(a->nb, b->nb, sizeof(a->nb)) == 0; }

bool gcuda_can_repeat(const struct gcuda_tensor * small, const struct gcuda_tensor * big) {
    if (gcuda_is_empty(small)) {
        return gcuda_is_empty(big);
    }
    for (int i = 0; i < GCUDA_MAX_DIMS; ++i) {
        if (big->ne[i] % small->ne[i] != 0) {
            return false;
        }
    }
    return true;
}

bool gcuda_can_repeat_rows(const struct gcuda_tensor * small, const struct gcuda_tensor * big) {
    return small->ne[0] == big->ne[0] && gcuda_can_repeat(small, big);
}

static bool gcudai_same_layout(const struct gcuda_tensor * a, const struct gcuda_tensor * b) {
    return a->type == b->type && gcuda_are_same_shape(a, b) && gcuda_are_same_stride(a, b);
}

void gcuda_unravel_index(const struct gcuda_tensor * tensor, int64_t i, int64_t * i0, int64_t * i1, int64_t * i2, int64_t * i3) {
    int64_t * const out[GCUDA_MAX_DIMS] = { i0, i1, i2, i3 };
    for (int d = 0; d < GCUDA_MAX_DIMS; ++d) {
        const int64_t ne = tensor->ne[d] > 0 ? tensor->ne[d] : 1;
        if (out[d] != NULL) {
            *out[d] = i % ne;
        }
        i /= ne;
    }
}

// ---- contexts: a chain of blocks, a list of objects ----

enum gcudai_object_kind { GCUDAI_OBJECT_TENSOR, GCUDAI_OBJECT_GRAPH, GCUDAI_OBJECT_BYTES };
struct gcudai_object {
    struct gcudai_object * next, * prev;
    size_t size; // of the payload that follows
    enum gcudai_object_kind kind;
};
struct gcudai_arena_block {
    struct gcudai_arena_block * next; // the older one
    char * base;
    size_t size, used;
    bool is_owned;
};

struct gcuda_context {
    struct gcudai_arena_block * block; // the newest
    struct gcudai_object * first, * last;
    bool no_alloc, is_growing;
    gcuda_status error; // the first one; text in message
    char message[GCUDAI_MESSAGE_BYTES];
};

#define GCUDAI_OBJECT_BYTES_PADDED ((sizeof(struct gcudai_object) + GCUDA_MEM_ALIGN - 1) / GCUDA_MEM_ALIGN * GCUDA_MEM_ALIGN)
#define GCUDAI_ARENA_MIN_BYTES ((size_t) 64 * 1024)
#define GCUDAI_ARENA_MAX_BYTES ((size_t) 16 * 1024 * 1024)

static struct gcudai_arena_block * gcudai_arena_add(struct gcuda_context * ctx, void * memory, size_t size) {
    const size_t header = gcudai_pad(sizeof(struct gcudai_arena_block), GCUDAI_ALIGN);
    size_t bytes = header;
    if (memory == NULL && !gcudai_add_size(header, size, &bytes)) {
        gcudai_fail(GCUDA_STATUS_ALLOC_FAILED, "out of memory: a context of %llu bytes", (unsigned long long) size);
        return NULL;
    }
    struct gcudai_arena_block * b = (struct gcudai_arena_block *) gcudai_alloc(bytes);
    if (b == NULL) {
        return NULL;
    }
    b->next = ctx->block;
    b->base = memory ? (char *) memory : (char *) b + header;
    b->size = size;
    b->used = (size_t) (-(uintptr_t) b->base) % GCUDA_MEM_ALIGN; // caller's memory may be unaligned
    b->is_owned = memory == NULL;
    ctx->block = b;
    return b;
}

struct gcuda_context * gcuda_init(struct gcuda_init_params params) {
    if (params.mem_size == 0 && params.mem_buffer != NULL) {
        gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "init: mem_buffer needs mem_size");
        return NULL;
    }
    struct gcuda_context * ctx = (struct gcuda_context *) gcudai_calloc(1, sizeof(struct gcuda_context));
    if (ctx == NULL) {
        return NULL;
    }
    ctx->no_alloc = params.no_alloc;
    ctx->is_growing = params.mem_size == 0;
    if (params.mem_size != 0 && gcudai_arena_add(ctx, params.mem_buffer, params.mem_size) == NULL) {
        gcudai_free(ctx);
        return NULL;
    }
    return ctx;
}

void gcuda_free(struct gcuda_context * ctx) {
    if (ctx == NULL) {
        return;
    }
    while (ctx->block != NULL) {
        struct gcudai_arena_block * next = ctx->block->next;
        gcudai_free(ctx->block);
        ctx->block = next;
    }
    gcudai_free(ctx);
}

void gcuda_reset(struct gcuda_context * ctx) {
    if (ctx == NULL) {
        return;
    }
    while (ctx->block != NULL && ctx->block->next != NULL) { // the newest block is the largest: keep that one
        struct gcudai_arena_block * older = ctx->block->next;
        ctx->block->next = older->next;
        gcudai_free(older);
    }
    if (ctx->block != NULL) {
        ctx->block->used = (size_t) (-(uintptr_t) ctx->block->base) % GCUDA_MEM_ALIGN;
    }
    ctx->first = ctx->last = NULL;
    gcuda_context_clear_error(ctx);
}

gcuda_status gcuda_context_status(const struct gcuda_context * ctx) { return ctx ? ctx->error : GCUDA_STATUS_INVALID_ARGUMENT; }
const char * gcuda_context_error(const struct gcuda_context * ctx) { return ctx ? ctx->message : "context is NULL"; }

void gcuda_context_clear_error(struct gcuda_context * ctx) {
    if (ctx != NULL) {
        ctx->error = GCUDA_STATUS_SUCCESS;
        ctx->message[0] = '\0';
    }
}

// The context keeps this thread's last error, if it has none yet.
static void gcudai_latch(struct gcuda_context * ctx, gcuda_status status) {
    if (ctx != NULL && ctx->error == GCUDA_STATUS_SUCCESS) {
        ctx->error = status;
        memcpy(ctx->message, gcudai_message, sizeof(ctx->message));
    }
}

size_t gcuda_used_mem(const struct gcuda_context * ctx) {
    size_t used = 0;
    for (const struct gcudai_arena_block * b = ctx ? ctx->block : NULL; b != NULL; b = b->next) {
        used += b->used;
    }
    return used;
}

size_t gcuda_get_mem_size(const struct gcuda_context * ctx) {
    size_t size = 0;
    for (const struct gcudai_arena_block * b = ctx ? ctx->block : NULL; b != NULL; b = b->next) {
        size += b->size;
    }
    return size;
}

void * gcuda_get_mem_buffer(const struct gcuda_context * ctx) {
    const struct gcudai_arena_block * b = ctx ? ctx->block : NULL;
    while (b != NULL && b->next != NULL) {
        b = b->next;
    }
    return b ? b->base : NULL;
}

bool gcuda_get_no_alloc(const struct gcuda_context * ctx) { return ctx != NULL && ctx->no_alloc; }

void gcuda_set_no_alloc(struct gcuda_context * ctx, bool no_alloc) {
    if (ctx != NULL) {
        ctx->no_alloc = no_alloc;
    }
}

// An object of the arena, its payload uninitialised. Latches on failure.
static void * gcudai_object_new(struct gcuda_context * ctx, enum gcudai_object_kind kind, size_t size) {
    size_t bytes = 0;
    if (size > (size_t) PTRDIFF_MAX || !gcudai_add_size(gcudai_pad(size, GCUDA_MEM_ALIGN), GCUDAI_OBJECT_BYTES_PADDED, &bytes)) {
        gcudai_latch(ctx, gcudai_fail(GCUDA_STATUS_ALLOC_FAILED, "context: an object of %llu bytes is too large", (unsigned long long) size));
        return NULL;
    }
    struct gcudai_arena_block * b = ctx->block;
    if ((b == NULL || bytes > b->size - GCUDAI_MIN(b->used, b->size)) && ctx->is_growing) {
        size_t want = b ? GCUDAI_MIN(b->size * 2, GCUDAI_ARENA_MAX_BYTES) : GCUDAI_ARENA_MIN_BYTES;
        want = GCUDAI_MAX(want, bytes);
        b = gcudai_arena_add(ctx, NULL, want);
        if (b == NULL) {
            gcudai_latch(ctx, GCUDA_STATUS_ALLOC_FAILED);
            return NULL;
        }
    }
    if (b == NULL || bytes > b->size - GCUDAI_MIN(b->used, b->size)) {
        gcudai_latch(ctx, gcudai_fail(GCUDA_STATUS_ALLOC_FAILED, "context is full: %llu bytes wanted, %llu of %llu used",
                                      (unsigned long long) bytes, (unsigned long long) (b ? b->used : 0), (unsigned long long) (b ? b->size : 0)));
        return NULL;
    }
    struct gcudai_object * o = (struct gcudai_object *) (void *) (b->base + b->used);
    b->used += bytes;
    o->next = NULL;
    o->prev = ctx->last;
    o->size = size;
    o->kind = kind;
    if (ctx->last) {
        ctx->last->next = o;
    } else {
        ctx->first = o;
    }
    ctx->last = o;
    return (char *) o + GCUDAI_OBJECT_BYTES_PADDED;
}

static struct gcudai_object * gcudai_object_of(const void * payload) {
    return (struct gcudai_object *) (void *) ((char *) (uintptr_t) payload - GCUDAI_OBJECT_BYTES_PADDED);
}

// Takes the newest object back.
static void gcudai_object_pop(struct gcuda_context * ctx, void * payload) {
    struct gcudai_object * o = gcudai_object_of(payload);
    if (o != ctx->last) {
        return;
    }
    ctx->last = o->prev;
    if (o->prev) {
        o->prev->next = NULL;
    } else {
        ctx->first = NULL;
    }
    ctx->block->used -= GCUDAI_OBJECT_BYTES_PADDED + gcudai_pad(o->size, GCUDA_MEM_ALIGN);
}

void * gcuda_new_buffer(struct gcuda_context * ctx, size_t n_bytes) { return ctx ? gcudai_object_new(ctx, GCUDAI_OBJECT_BYTES, n_bytes) : NULL; }

static struct gcuda_tensor * gcudai_next_tensor(const struct gcudai_object * o) {
    while (o != NULL && o->kind != GCUDAI_OBJECT_TENSOR) {
        o = o->next;
    }
    return o ? (struct gcuda_tensor *) (void *) ((char *) (uintptr_t) o + GCUDAI_OBJECT_BYTES_PADDED) : NULL;
}

struct gcuda_tensor * gcuda_get_first_tensor(const struct gcuda_context * ctx) { return ctx ? gcudai_next_tensor(ctx->first) : NULL; }

struct gcuda_tensor * gcuda_get_next_tensor(const struct gcuda_context * ctx, const struct gcuda_tensor * tensor) {
    (void) ctx;
    return tensor ? gcudai_next_tensor(gcudai_object_of(tensor)->next) : NULL;
}

struct gcuda_tensor * gcuda_get_tensor(const struct gcuda_context * ctx, const char * name) {
    for (struct gcuda_tensor * t = gcuda_get_first_tensor(ctx); t != NULL && name != NULL; t = gcuda_get_next_tensor(ctx, t)) {
        if (strcmp(t->name, name) == 0) {
            return t;
        }
    }
    return NULL;
}

size_t gcuda_get_max_tensor_size(const struct gcuda_context * ctx) {
    size_t max = 0;
    for (struct gcuda_tensor * t = gcuda_get_first_tensor(ctx); t != NULL; t = gcuda_get_next_tensor(ctx, t)) {
        const size_t size = gcuda_nbytes(t);
        max = GCUDAI_MAX(max, size);
    }
    return max;
}

size_t gcuda_tensor_overhead(void) { return GCUDAI_OBJECT_BYTES_PADDED + gcudai_pad(sizeof(struct gcuda_tensor), GCUDA_MEM_ALIGN); }

// A contiguous tensor; with view_src a view of it at offs bytes (of its root, if it is itself a view). Latches.
static struct gcuda_tensor * gcudai_tensor_new(struct gcuda_context * ctx, enum gcuda_type type, const int64_t * ne, struct gcuda_tensor * view_src, size_t offs) {
    size_t nb[GCUDA_MAX_DIMS], n_bytes = 0, end = 0;
    gcuda_status st = gcudai_layout(type, ne, nb, &n_bytes);
    if (st == GCUDA_STATUS_SUCCESS && view_src != NULL) {
        const struct gcuda_tensor * root = view_src->view_src ? view_src->view_src : view_src;
        const bool is_ok = (root == view_src || gcudai_add_size(offs, view_src->view_offs, &offs)) && gcudai_add_size(offs, n_bytes, &end);
        if (!is_ok || (n_bytes > 0 && end > gcuda_nbytes(root))) {
            st = gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "a view of %llu bytes at offset %llu does not fit into '%s' of %llu bytes",
                             (unsigned long long) n_bytes, (unsigned long long) offs, root->name, (unsigned long long) gcuda_nbytes(root));
        }
    }
    if (st != GCUDA_STATUS_SUCCESS) {
        gcudai_latch(ctx, st);
        return NULL;
    }
    const size_t head = gcudai_pad(sizeof(struct gcuda_tensor), GCUDA_MEM_ALIGN);
    const bool has_data = view_src == NULL && !ctx->no_alloc;
    struct gcuda_tensor * t = (struct gcuda_tensor *) gcudai_object_new(ctx, GCUDAI_OBJECT_TENSOR, head + (has_data ? n_bytes : 0));
    if (t == NULL) {
        return NULL;
    }
    memset(t, 0, sizeof(*t));
    t->type = type;
    memcpy(t->ne, ne, sizeof(t->ne));
    memcpy(t->nb, nb, sizeof(t->nb));
    if (view_src != NULL) {
        t->view_src = view_src->view_src ? view_src->view_src : view_src;
        t->view_offs = offs;
        t->data = t->view_src->data ? (char *) t->view_src->data + offs : NULL;
        t->buffer = NULL; // given by gcuda_backend_view_init
    } else if (has_data) {
        t->data = (char *) t + head;
    }
    return t;
}

struct gcuda_tensor * gcuda_new_tensor(struct gcuda_context * ctx, enum gcuda_type type, int n_dims, const int64_t * ne) {
    int64_t full[GCUDA_MAX_DIMS] = { 1, 1, 1, 1 };
    if (ctx == NULL || ne == NULL || n_dims < 1 || n_dims > GCUDA_MAX_DIMS) {
        gcudai_latch(ctx, gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "new_tensor: context or shape is NULL, or %d dimensions (1 to 4)", n_dims));
        return NULL;
    }
    memcpy(full, ne, (size_t) n_dims * sizeof(full[0]));
    return gcudai_tensor_new(ctx, type, full, NULL, 0);
}

struct gcuda_tensor * gcuda_new_tensor_1d(struct gcuda_context * ctx, enum gcuda_type type, int64_t ne0) { return gcuda_new_tensor(ctx, type, 1, &ne0); }

struct gcuda_tensor * gcuda_new_tensor_2d(struct gcuda_context * ctx, enum gcuda_type type, int64_t ne0, int64_t ne1) {
    const int64_t ne[2] = { ne0, ne1 };
    return gcuda_new_tensor(ctx, type, 2, ne);
}

struct gcuda_tensor * gcuda_new_tensor_3d(struct gcuda_context * ctx, enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2) {
    const int64_t ne[3] = { ne0, ne1, ne2 };
    return gcuda_new_tensor(ctx, type, 3, ne);
}

struct gcuda_tensor * gcuda_new_tensor_4d(struct gcuda_context * ctx, enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    const int64_t ne[4] = { ne0, ne1, ne2, ne3 };
    return gcuda_new_tensor(ctx, type, 4, ne);
}

static struct gcuda_tensor * gcudai_new_scalar(struct gcuda_context * ctx, enum gcuda_type type) {
    if (ctx != NULL && ctx->no_alloc) {
        gcudai_latch(ctx, gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "new_%s: the context has no data (no_alloc)", gcuda_type_name(type)));
        return NULL;
    }
    return gcuda_new_tensor_1d(ctx, type, 1);
}

struct gcuda_tensor * gcuda_new_i32(struct gcuda_context * ctx, int32_t value) {
    struct gcuda_tensor * t = gcudai_new_scalar(ctx, GCUDA_TYPE_I32);
    if (t != NULL) {
        memcpy(t->data, &value, sizeof(value));
    }
    return t;
}

struct gcuda_tensor * gcuda_new_f32(struct gcuda_context * ctx, float value) {
    struct gcuda_tensor * t = gcudai_new_scalar(ctx, GCUDA_TYPE_F32);
    if (t != NULL) {
        memcpy(t->data, &value, sizeof(value));
    }
    return t;
}

struct gcuda_tensor * gcuda_dup_tensor(struct gcuda_context * ctx, const struct gcuda_tensor * src) {
    if (ctx == NULL || src == NULL) {
        gcudai_latch(ctx, gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "dup_tensor: context or source is NULL"));
        return NULL;
    }
    return gcudai_tensor_new(ctx, src->type, src->ne, NULL, 0);
}

// A view with the strides of src. Its contiguous size may exceed what it spans in memory only when src has strides
// of zero or overlaps itself, which no constructor makes; then the span is what counts.
static struct gcuda_tensor * gcudai_view_like(struct gcuda_context * ctx, struct gcuda_tensor * src) {
    const int64_t none[GCUDA_MAX_DIMS] = { 0, 0, 0, 0 };
    struct gcuda_tensor * t = gcudai_tensor_new(ctx, src->type, none, src, 0);
    if (t != NULL) {
        memcpy(t->ne, src->ne, sizeof(t->ne));
        memcpy(t->nb, src->nb, sizeof(t->nb));
    }
    return t;
}

struct gcuda_tensor * gcuda_view_tensor(struct gcuda_context * ctx, struct gcuda_tensor * src) {
    if (ctx == NULL || src == NULL) {
        gcudai_latch(ctx, gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "view_tensor: context or source is NULL"));
        return NULL;
    }
    struct gcuda_tensor * t = gcudai_view_like(ctx, src);
    return gcuda_format_name(t, "%s (view)", src->name);
}

const char * gcuda_get_name(const struct gcuda_tensor * tensor) { return tensor ? tensor->name : ""; }

struct gcuda_tensor * gcuda_set_name(struct gcuda_tensor * tensor, const char * name) {
    if (tensor != NULL) {
        char cut[GCUDA_MAX_NAME];
        snprintf(cut, sizeof(cut), "%s", name ? name : ""); // name may be the tensor's own
        memcpy(tensor->name, cut, sizeof(cut));
    }
    return tensor;
}

struct gcuda_tensor * gcuda_format_name(struct gcuda_tensor * tensor, const char * fmt, ...) {
    if (tensor != NULL) {
        va_list args;
        va_start(args, fmt);
        vsnprintf(tensor->name, sizeof(tensor->name), fmt, args);
        va_end(args);
    }
    return tensor;
}

void gcuda_set_input(struct gcuda_tensor * tensor) {
    if (tensor != NULL) {
        tensor->flags |= GCUDA_TENSOR_FLAG_INPUT;
    }
}

void gcuda_set_output(struct gcuda_tensor * tensor) {
    if (tensor != NULL) {
        tensor->flags |= GCUDA_TENSOR_FLAG_OUTPUT;
    }
}

gcuda_status gcuda_set_param(struct gcuda_tensor * tensor) {
    if (tensor == NULL || tensor->op != GCUDA_OP_NONE) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "set_param: '%s' is NULL or computed by an operation", gcuda_get_name(tensor));
    }
    tensor->flags |= GCUDA_TENSOR_FLAG_PARAM;
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status gcuda_set_loss(struct gcuda_tensor * tensor) {
    if (tensor == NULL || tensor->type != GCUDA_TYPE_F32 || !gcuda_is_scalar(tensor)) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "set_loss: '%s' is NULL or not a scalar f32", gcuda_get_name(tensor));
    }
    tensor->flags |= GCUDA_TENSOR_FLAG_LOSS;
    return GCUDA_STATUS_SUCCESS;
}

void * gcuda_get_data(const struct gcuda_tensor * tensor) { return tensor ? tensor->data : NULL; }
float * gcuda_get_data_f32(const struct gcuda_tensor * tensor) { return tensor && tensor->type == GCUDA_TYPE_F32 ? (float *) tensor->data : NULL; }

// ---- single elements ----

static bool gcudai_in_host_memory(const struct gcuda_tensor * t) {
    const gcuda_backend_buffer_t buffer = t->view_src ? t->view_src->buffer : t->buffer;
    return t->data != NULL && (buffer == NULL || gcuda_backend_buffer_is_host(buffer));
}

// Address of an element of a plain type in host memory, or NULL with a message.
static char * gcudai_element(const struct gcuda_tensor * t, int64_t i0, int64_t i1, int64_t i2, int64_t i3, const char * what) {
    const int64_t i[GCUDA_MAX_DIMS] = { i0, i1, i2, i3 };
    if (t == NULL || !gcudai_in_host_memory(t) || gcuda_blck_size(t->type) != 1) {
        gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "%s: '%s' is NULL, not in host memory or quantized", what, gcuda_get_name(t));
        return NULL;
    }
    size_t offset = 0;
    for (int d = 0; d < GCUDA_MAX_DIMS; ++d) {
        if (i[d] < 0 || i[d] >= t->ne[d]) {
            gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "%s: index [%lld, %lld, %lld, %lld] is outside '%s' [%lld, %lld, %lld, %lld]", what,
                        (long long) i0, (long long) i1, (long long) i2, (long long) i3, t->name,
                        (long long) t->ne[0], (long long) t->ne[1], (long long) t->ne[2], (long long) t->ne[3]);
            return NULL;
        }
        offset += (size_t) i[d] * t->nb[d];
    }
    return (char *) t->data + offset;
}

static double gcudai_get_number(enum gcuda_type type, const char * p) {
    int8_t i8;
    int16_t i16;
    int32_t i32;
    int64_t i64;
    double f64;
    float f32;
    switch (type) {
        case GCUDA_TYPE_I8: memcpy(&i8, p, sizeof(i8)); return i8;
        case GCUDA_TYPE_I16: memcpy(&i16, p, sizeof(i16)); return i16;
        case GCUDA_TYPE_I32: memcpy(&i32, p, sizeof(i32)); return i32;
        case GCUDA_TYPE_I64: memcpy(&i64, p, sizeof(i64)); return (double) i64;
        case GCUDA_TYPE_F64: memcpy(&f64, p, sizeof(f64)); return f64;
        default: gcudai_load(type, p, 0, 1, &f32); return (double) f32;
    }
}

// Integers saturate.
static void gcudai_set_number(enum gcuda_type type, char * p, double v) {
    const double lo = type == GCUDA_TYPE_I8 ? -128.0 : type == GCUDA_TYPE_I16 ? -32768.0 : type == GCUDA_TYPE_I32 ? -2147483648.0 : -9223372036854775808.0;
    const double clamped = v != v ? 0.0 : v < lo ? lo : v >= -lo ? -lo - 1.0 : v;
    const int64_t i64 = v >= 9223372036854775808.0 ? INT64_MAX : (int64_t) GCUDAI_MIN(clamped, 9223372036854774784.0);
    const int32_t i32 = (int32_t) i64;
    const int16_t i16 = (int16_t) i64;
    const int8_t i8 = (int8_t) i64;
    const float f32 = (float) v;
    switch (type) {
        case GCUDA_TYPE_I8: memcpy(p, &i8, sizeof(i8)); break;
        case GCUDA_TYPE_I16: memcpy(p, &i16, sizeof(i16)); break;
        case GCUDA_TYPE_I32: memcpy(p, &i32, sizeof(i32)); break;
        case GCUDA_TYPE_I64: memcpy(p, &i64, sizeof(i64)); break;
        case GCUDA_TYPE_F64: memcpy(p, &v, sizeof(v)); break;
        default: gcudai_store(type, p, 0, 1, &f32); break;
    }
}

float gcuda_get_f32_nd(const struct gcuda_tensor * tensor, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const char * p = gcudai_element(tensor, i0, i1, i2, i3, "get_f32");
    return p ? (float) gcudai_get_number(tensor->type, p) : 0.0f;
}

gcuda_status gcuda_set_f32_nd(struct gcuda_tensor * tensor, int64_t i0, int64_t i1, int64_t i2, int64_t i3, float value) {
    char * p = gcudai_element(tensor, i0, i1, i2, i3, "set_f32");
    if (p == NULL) {
        return GCUDA_STATUS_INVALID_ARGUMENT;
    }
    gcudai_set_number(tensor->type, p, (double) value);
    return GCUDA_STATUS_SUCCESS;
}

float gcuda_get_f32_1d(const struct gcuda_tensor * tensor, int64_t i) {
    int64_t at[GCUDA_MAX_DIMS] = { i, 0, 0, 0 };
    if (tensor != NULL && i >= 0 && i < gcuda_nelements(tensor)) {
        gcuda_unravel_index(tensor, i, &at[0], &at[1], &at[2], &at[3]);
    }
    return gcuda_get_f32_nd(tensor, at[0], at[1], at[2], at[3]);
}

gcuda_status gcuda_set_f32_1d(struct gcuda_tensor * tensor, int64_t i, float value) {
    int64_t at[GCUDA_MAX_DIMS] = { i, 0, 0, 0 };
    if (tensor != NULL && i >= 0 && i < gcuda_nelements(tensor)) {
        gcuda_unravel_index(tensor, i, &at[0], &at[1], &at[2], &at[3]);
    }
    return gcuda_set_f32_nd(tensor, at[0], at[1], at[2], at[3], value);
}

static gcuda_status gcudai_set_all(struct gcuda_tensor * tensor, double value, const char * what) {
    if (tensor != NULL && gcuda_is_empty(tensor)) {
        return GCUDA_STATUS_SUCCESS;
    }
    if (gcudai_element(tensor, 0, 0, 0, 0, what) == NULL) {
        return GCUDA_STATUS_INVALID_ARGUMENT;
    }
    const int64_t n = gcuda_nelements(tensor);
    for (int64_t i = 0; i < n; ++i) {
        int64_t at[GCUDA_MAX_DIMS];
        gcuda_unravel_index(tensor, i, &at[0], &at[1], &at[2], &at[3]);
        gcudai_set_number(tensor->type, gcudai_element(tensor, at[0], at[1], at[2], at[3], what), value);
    }
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status gcuda_set_f32(struct gcuda_tensor * tensor, float value) { return gcudai_set_all(tensor, (double) value, "set_f32"); }
gcuda_status gcuda_set_i32(struct gcuda_tensor * tensor, int32_t value) { return gcudai_set_all(tensor, (double) value, "set_i32"); }

struct gcuda_tensor * gcuda_set_zero(struct gcuda_tensor * tensor) {
    if (tensor == NULL || (tensor->data == NULL && !gcuda_is_empty(tensor))) {
        gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "set_zero: '%s' is NULL or has no data", gcuda_get_name(tensor));
        return NULL;
    }
    if (tensor->buffer != NULL) {
        return gcuda_backend_tensor_memset(tensor, 0, 0, gcuda_nbytes(tensor)) == GCUDA_STATUS_SUCCESS ? tensor : NULL;
    }
    if (gcuda_is_contiguously_allocated(tensor)) {
        memset(tensor->data, 0, gcuda_nbytes(tensor));
    } else if (gcudai_set_all(tensor, 0.0, "set_zero") != GCUDA_STATUS_SUCCESS) { // what lies in the gaps is not ours
        return NULL;
    }
    return tensor;
}

// =====================================================================================================
// >>impl-simd   vectorised CPU kernels
// =====================================================================================================

// Quantized weights are multiplied in two steps that every format shares. A run of weights is first expanded into
// one byte per element plus an F32 scale and minimum per 32 or 16 elements (value = scale * code + minimum); then
// the bytes meet activations that were rounded to 8 bits, with an F32 scale d and sums per 32 values:
//     sum_i w[i] * x[i] = sum_g  scale[g] * d[g] * (integer sum of code * q)  +  minimum[g] * d[g] * sum of q
// Rounding also changes the sum of a group, and in formats with a stored minimum that error would be multiplied by the
// mean weight of the group, however large. There the difference of the sums is added back, times that mean.
// The expansion costs a quarter of the work in a matrix-vector product and is shared by all columns otherwise; in
// exchange 20 formats need one small function each, and the products exist four times per instruction set.
enum gcudai_q_kind {
    GCUDAI_Q_U32, // codes 0..63, scale per 32, the minimum is scale * constant
    GCUDAI_Q_U16, // the same, scale per 16
    GCUDAI_Q_M32, // codes 0..63, scale and stored minimum per 32
    GCUDAI_Q_M16, // the same, per 16
    GCUDAI_Q_S32, // codes -128..127 without minimum, scale per 32
    GCUDAI_Q_S16, // the same, scale per 16
    GCUDAI_Q_KINDS
};

static int gcudai_q_group(enum gcudai_q_kind kind) {
    return kind == GCUDAI_Q_U32 || kind == GCUDAI_Q_M32 || kind == GCUDAI_Q_S32 ? 32 : 16;
}

static bool gcudai_q_is_signed(enum gcudai_q_kind kind) { return kind >= GCUDAI_Q_S32; }

static bool gcudai_q_has_min(enum gcudai_q_kind kind) { return kind == GCUDAI_Q_M32 || kind == GCUDAI_Q_M16; }

#define GCUDAI_Q_CHUNK 2048 // elements expanded at a time: codes and scales stay in the first-level cache
#define GCUDAI_Q_PAD 256 // activation columns and chunks are padded to this with zero scales

// One column of activations: codes; per 32 values the scale d, the sum s = d * (sum of codes) and r = (sum of the values
// themselves) - s; both sums also per 16.
struct gcudai_q_col {
    int8_t * q;
    float * d, * s32, * r32, * s16, * r16;
};

static int64_t gcudai_q_pad(int64_t k) { return (k + GCUDAI_Q_PAD - 1) / GCUDAI_Q_PAD * GCUDAI_Q_PAD; }

static size_t gcudai_q_col_size(int64_t k) {
    return (size_t) gcudai_q_pad(k) * 2; // 1 byte + 3 * 4 bytes / 32 + 2 * 4 bytes / 16, and a little space
}

// The part of a packed column that begins at element k0, a multiple of GCUDAI_Q_PAD.
static struct gcudai_q_col gcudai_q_col_at(char * data, int64_t k, int64_t k0) {
    const int64_t n = gcudai_q_pad(k);
    float * f = (float *) (void *) (data + n);
    struct gcudai_q_col c;
    c.q = (int8_t *) data + k0;
    c.d = f + k0 / 32;
    c.s32 = f + n / 32 + k0 / 32;
    c.r32 = f + n / 16 + k0 / 32;
    c.s16 = f + n / 8 + k0 / 16;
    c.r16 = f + n / 16 * 3 + k0 / 16;
    return c;
}

// what follows the first 32 g values
static struct gcudai_q_col gcudai_q_col_skip(const struct gcudai_q_col * x, int64_t g) {
    struct gcudai_q_col c = *x;
    c.q += 32 * g;
    c.d += g;
    c.s32 += g;
    c.r32 += g;
    c.s16 += 2 * g;
    c.r16 += 2 * g;
    return c;
}

static uint16_t gcudai_ld16(const void * p) {
    uint16_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static uint32_t gcudai_ld32(const void * p) {
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static float gcudai_ldh(const void * p) {
    return gcudai_fp16_to_fp32(gcudai_ld16(p));
}

// Sums of 32 values from those of their codes and of the quotients value / d (which cannot overflow).
static void gcudai_q_sums(const struct gcudai_q_col * c, float d, const int sum[2], const float exact[2]) {
    c->d[0] = d;
    for (int i = 0; i < 2; ++i) {
        c->s16[i] = d * (float) sum[i];
        c->r16[i] = d * (exact[i] - (float) sum[i]);
    }
    c->s32[0] = d * (float) (sum[0] + sum[1]);
    c->r32[0] = c->r16[0] + c->r16[1];
}

// 32 activations to 8 bits. A block with a NaN or an infinity gets the scale NaN: the columns it feeds become NaN,
// and no such value is ever converted to an integer. A block below 1e-36 counts as zero: 127 / amax would overflow.
static void gcudai_q_block(const float * x, const struct gcudai_q_col * c) {
    float amax = 0.0f, exact[2] = { 0.0f, 0.0f };
    int sum[2] = { 0, 0 };
    bool is_finite = true;
    for (int i = 0; i < 32; ++i) {
        const float a = fabsf(x[i]);
        is_finite = is_finite && a <= FLT_MAX;
        amax = a > amax ? a : amax;
    }
    memset(c->q, 0, 32);
    if (!is_finite || amax < 1e-36f) {
        gcudai_q_sums(c, is_finite ? 0.0f : (float) NAN, sum, exact);
        return;
    }
    const float id = 127.0f / amax;
    for (int i = 0; i < 32; ++i) {
        const float v = x[i] * id;
        c->q[i] = (int8_t) (v + (v < 0.0f ? -0.5f : 0.5f));
        sum[i / 16] += c->q[i];
        exact[i / 16] += v;
    }
    gcudai_q_sums(c, amax / 127.0f, sum, exact);
}

static void gcudai_q_blocks_scalar(const float * x, int n, const struct gcudai_q_col * c) {
    for (int g = 0; g < n; ++g) {
        const struct gcudai_q_col to = gcudai_q_col_skip(c, g);
        gcudai_q_block(x + 32 * g, &to);
    }
}

// ---- expansion of each format, portable ----
// w: n blocks of the format; q: one byte per element; sc, mn: per 32 or 16 elements (mn not for signed codes)

static void gcudai_nibbles(const uint8_t * p, int n, uint8_t * lo, uint8_t * hi) {
    for (int i = 0; i < n; ++i) {
        lo[i] = (uint8_t) (p[i] & 15);
        hi[i] = (uint8_t) (p[i] >> 4);
    }
}

static void gcudai_codes_q4_0(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    for (int64_t b = 0; b < n; ++b, w += 18, q += 32) {
        sc[b] = gcudai_ldh(w);
        mn[b] = -8.0f * sc[b];
        gcudai_nibbles(w + 2, 16, q, q + 16);
    }
}

static void gcudai_codes_q4_1(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    for (int64_t b = 0; b < n; ++b, w += 20, q += 32) {
        sc[b] = gcudai_ldh(w);
        mn[b] = gcudai_ldh(w + 2);
        gcudai_nibbles(w + 4, 16, q, q + 16);
    }
}

// adds bit i of qh to code i as 16
static void gcudai_fifth_bits(uint32_t qh, uint8_t * q) {
    for (int i = 0; i < 32; ++i) {
        q[i] = (uint8_t) (q[i] | ((qh >> i & 1) << 4));
    }
}

static void gcudai_codes_q5_0(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    for (int64_t b = 0; b < n; ++b, w += 22, q += 32) {
        sc[b] = gcudai_ldh(w);
        mn[b] = -16.0f * sc[b];
        gcudai_nibbles(w + 6, 16, q, q + 16);
        gcudai_fifth_bits(gcudai_ld32(w + 2), q);
    }
}

static void gcudai_codes_q5_1(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    for (int64_t b = 0; b < n; ++b, w += 24, q += 32) {
        sc[b] = gcudai_ldh(w);
        mn[b] = gcudai_ldh(w + 2);
        gcudai_nibbles(w + 8, 16, q, q + 16);
        gcudai_fifth_bits(gcudai_ld32(w + 4), q);
    }
}

static void gcudai_codes_q8_0(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    (void) mn;
    for (int64_t b = 0; b < n; ++b, w += 34, q += 32) {
        sc[b] = gcudai_ldh(w);
        memcpy(q, w + 2, 32);
    }
}

static void gcudai_codes_table16(const uint8_t * p, const int8_t * table, uint8_t * q) {
    for (int i = 0; i < 16; ++i) {
        q[i] = (uint8_t) table[p[i] & 15];
        q[i + 16] = (uint8_t) table[p[i] >> 4];
    }
}

static void gcudai_codes_iq4_nl(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    (void) mn;
    for (int64_t b = 0; b < n; ++b, w += 18, q += 32) {
        sc[b] = gcudai_ldh(w);
        gcudai_codes_table16(w + 2, gcudai_kvalues_iq4nl, q);
    }
}

static void gcudai_codes_mxfp4(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    (void) mn;
    for (int64_t b = 0; b < n; ++b, w += 17, q += 32) {
        sc[b] = gcudai_mxfp4_scale(w[0]);
        gcudai_codes_table16(w + 1, gcudai_kvalues_mxfp4, q);
    }
}

// 64 bytes of 2-bit codes: byte l of a half holds elements l, l + 32, l + 64, l + 96 of that half
static void gcudai_crumbs(const uint8_t * p, uint8_t * q) {
    for (int i = 0; i < 256; ++i) {
        q[i] = (uint8_t) (p[32 * (i / 128) + i % 32] >> (i % 128 / 32 * 2) & 3);
    }
}

static void gcudai_codes_q2_k(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    for (int64_t b = 0; b < n; ++b, w += 84, q += 256, sc += 16, mn += 16) {
        const float d = gcudai_ldh(w + 80), dmin = gcudai_ldh(w + 82);
        for (int g = 0; g < 16; ++g) {
            sc[g] = d * (float) (w[g] & 15);
            mn[g] = -dmin * (float) (w[g] >> 4);
        }
        gcudai_crumbs(w + 16, q);
    }
}

// the sixteen 6-bit scales of Q3_K as four words of bytes 0..63
static void gcudai_q3_k_scales(const uint8_t * p, uint32_t out[4]) {
    const uint32_t a = gcudai_ld32(p), b = gcudai_ld32(p + 4), h = gcudai_ld32(p + 8);
    out[0] = (a & 0x0f0f0f0fu) | (h << 4 & 0x30303030u);
    out[1] = (b & 0x0f0f0f0fu) | (h << 2 & 0x30303030u);
    out[2] = (a >> 4 & 0x0f0f0f0fu) | (h & 0x30303030u);
    out[3] = (b >> 4 & 0x0f0f0f0fu) | (h >> 2 & 0x30303030u);
}

static void gcudai_codes_q3_k(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    for (int64_t b = 0; b < n; ++b, w += 110, q += 256, sc += 16, mn += 16) {
        const float d = gcudai_ldh(w + 108);
        uint32_t packed[4];
        gcudai_q3_k_scales(w + 96, packed);
        for (int g = 0; g < 16; ++g) {
            sc[g] = d * (float) ((int) (packed[g / 4] >> (g % 4 * 8) & 63) - 32);
            mn[g] = -4.0f * sc[g];
        }
        gcudai_crumbs(w + 32, q);
        for (int i = 0; i < 256; ++i) {
            q[i] = (uint8_t) (q[i] | ((w[i % 32] >> (i / 32) & 1) << 2));
        }
    }
}

// the 12 bytes of eight 6-bit scales and minima in Q4_K and Q5_K: scales in out[0..1], minima in out[2..3]
static void gcudai_q4_k_scales(const uint8_t * p, uint32_t out[4]) {
    const uint32_t a = gcudai_ld32(p), b = gcudai_ld32(p + 4), c = gcudai_ld32(p + 8);
    out[0] = a & 0x3f3f3f3fu;
    out[1] = (c & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u);
    out[2] = b & 0x3f3f3f3fu;
    out[3] = (c >> 4 & 0x0f0f0f0fu) | (b >> 2 & 0x30303030u);
}

static void gcudai_q4_k_floats(const uint8_t * w, float * sc, float * mn) {
    const float d = gcudai_ldh(w), dmin = gcudai_ldh(w + 2);
    uint32_t packed[4];
    gcudai_q4_k_scales(w + 4, packed);
    for (int g = 0; g < 8; ++g) {
        sc[g] = d * (float) (packed[g / 4] >> (g % 4 * 8) & 63);
        mn[g] = -dmin * (float) (packed[2 + g / 4] >> (g % 4 * 8) & 63);
    }
}

static void gcudai_codes_q4_k(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    for (int64_t b = 0; b < n; ++b, w += 144, q += 256, sc += 8, mn += 8) {
        gcudai_q4_k_floats(w, sc, mn);
        for (int h = 0; h < 4; ++h) {
            gcudai_nibbles(w + 16 + 32 * h, 32, q + 64 * h, q + 64 * h + 32);
        }
    }
}

static void gcudai_codes_q5_k(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    for (int64_t b = 0; b < n; ++b, w += 176, q += 256, sc += 8, mn += 8) {
        gcudai_q4_k_floats(w, sc, mn);
        for (int h = 0; h < 4; ++h) {
            gcudai_nibbles(w + 48 + 32 * h, 32, q + 64 * h, q + 64 * h + 32);
        }
        for (int i = 0; i < 256; ++i) {
            q[i] = (uint8_t) (q[i] | ((w[16 + i % 32] >> (i / 32) & 1) << 4));
        }
    }
}

static void gcudai_codes_q6_k(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    for (int64_t b = 0; b < n; ++b, w += 210, q += 256, sc += 16, mn += 16) {
        const float d = gcudai_ldh(w + 208);
        for (int g = 0; g < 16; ++g) {
            sc[g] = d * (float) (int8_t) w[192 + g];
            mn[g] = -32.0f * sc[g];
        }
        for (int h = 0; h < 2; ++h) {
            gcudai_nibbles(w + 64 * h, 64, q + 128 * h, q + 128 * h + 64);
            for (int i = 0; i < 128; ++i) {
                const int hi = w[128 + 32 * h + i % 32] >> (i / 32 * 2) & 3;
                q[128 * h + i] = (uint8_t) (q[128 * h + i] | hi << 4);
            }
        }
    }
}

static void gcudai_iq4_xs_floats(const uint8_t * w, float * sc) {
    const float d = gcudai_ldh(w);
    const uint32_t high = gcudai_ld16(w + 2);
    for (int g = 0; g < 8; ++g) {
        const uint32_t ls = (uint32_t) (w[4 + g / 2] >> (g % 2 * 4) & 15) | (high >> (2 * g) & 3) << 4;
        sc[g] = d * (float) ((int) ls - 32);
    }
}

static void gcudai_codes_iq4_xs(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    (void) mn;
    for (int64_t b = 0; b < n; ++b, w += 136, sc += 8) {
        gcudai_iq4_xs_floats(w, sc);
        for (int g = 0; g < 8; ++g, q += 32) {
            gcudai_codes_table16(w + 8 + 16 * g, gcudai_kvalues_iq4nl, q);
        }
    }
}

// Grid entries are eight bytes in one word. A word in memory is little endian here as everywhere in these formats,
// so element 0 is its lowest byte.

// negates byte j where bit j of s is set; no byte of v is zero, so adding 1 never carries into the next
static uint64_t gcudai_apply_signs(uint64_t v, uint64_t s) {
    const uint64_t ones = 0x0101010101010101u;
    const uint64_t bits = (s * ones & 0x8040201008040201u) + 0x7f7f7f7f7f7f7f7fu;
    const uint64_t set = bits >> 7 & ones;
    return (v ^ set * 255) + set;
}

static uint64_t gcudai_iq1_codes(uint64_t digits, bool minus) { // 8 * (digit - 1) +- 1, signed bytes
    const uint64_t base = (minus ? 119u : 121u) * 0x0101010101010101u;
    return (digits * 8 + base) ^ 0x8080808080808080u;
}

static void gcudai_codes_iq2_xxs(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    (void) mn;
    for (int64_t b = 0; b < n; ++b, w += 66) {
        const float d = gcudai_ldh(w);
        for (int g = 0; g < 8; ++g, ++sc) {
            const uint32_t a = gcudai_ld32(w + 2 + 8 * g + 4);
            *sc = d * (0.5f + (float) (a >> 28)) * 0.25f;
            for (int k = 0; k < 4; ++k, q += 8) {
                const uint64_t v = gcudai_iq2_entry(gcudai_grid_iq2xxs[w[2 + 8 * g + k]]);
                const uint64_t s = gcudai_apply_signs(v, gcudai_even_signs(a >> (7 * k) & 127));
                memcpy(q, &s, 8);
            }
        }
    }
}

static void gcudai_codes_iq2_xs(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    (void) mn;
    for (int64_t b = 0; b < n; ++b, w += 74, sc += 16) {
        const float d = gcudai_ldh(w);
        for (int g = 0; g < 16; ++g) {
            sc[g] = d * (0.5f + (float) (w[66 + g / 2] >> (g % 2 * 4) & 15)) * 0.25f;
        }
        for (int g = 0; g < 32; ++g, q += 8) {
            const uint32_t c = gcudai_ld16(w + 2 + 2 * g);
            const uint64_t v = gcudai_iq2_entry(gcudai_grid_iq2xs[c & 511]);
            const uint64_t s = gcudai_apply_signs(v, gcudai_even_signs(c >> 9));
            memcpy(q, &s, 8);
        }
    }
}

static void gcudai_codes_iq2_s(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    (void) mn;
    for (int64_t b = 0; b < n; ++b, w += 82, sc += 16) {
        const float d = gcudai_ldh(w);
        for (int g = 0; g < 16; ++g) {
            sc[g] = d * (0.5f + (float) (w[74 + g / 2] >> (g % 2 * 4) & 15)) * 0.25f;
        }
        for (int g = 0; g < 32; ++g, q += 8) {
            const int c = w[2 + g] | (w[66 + g / 4] >> (g % 4 * 2) & 3) << 8;
            const uint64_t v = gcudai_iq2_entry(gcudai_grid_iq2s[c]);
            const uint64_t s = gcudai_apply_signs(v, w[34 + g]);
            memcpy(q, &s, 8);
        }
    }
}

static void gcudai_codes_iq3_xxs(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    (void) mn;
    for (int64_t b = 0; b < n; ++b, w += 98) {
        const float d = gcudai_ldh(w);
        for (int g = 0; g < 8; ++g, ++sc) {
            const uint32_t a = gcudai_ld32(w + 66 + 4 * g);
            const uint8_t * c = w + 2 + 8 * g;
            *sc = d * (0.5f + (float) (a >> 28)) * 0.5f;
            for (int k = 0; k < 4; ++k, q += 8) {
                const uint64_t v = gcudai_iq3_xxs_entry(c[2 * k]) | (uint64_t) gcudai_iq3_xxs_entry(c[2 * k + 1]) << 32;
                const uint64_t s = gcudai_apply_signs(v, gcudai_even_signs(a >> (7 * k) & 127));
                memcpy(q, &s, 8);
            }
        }
    }
}

static void gcudai_codes_iq3_s(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    (void) mn;
    for (int64_t b = 0; b < n; ++b, w += 110, sc += 8) {
        const float d = gcudai_ldh(w);
        for (int g = 0; g < 8; ++g) {
            sc[g] = d * (float) (1 + 2 * (w[106 + g / 2] >> (g % 2 * 4) & 15));
        }
        for (int k = 0; k < 32; ++k, q += 8) {
            const int high = w[66 + k / 4] >> (k % 4 * 2);
            const uint32_t a = (uint32_t) (w[2 + 2 * k] | (high & 1) << 8);
            const uint32_t c = (uint32_t) (w[3 + 2 * k] | (high >> 1 & 1) << 8);
            const uint64_t v = gcudai_iq3_s_entry(a) | (uint64_t) gcudai_iq3_s_entry(c) << 32;
            const uint64_t s = gcudai_apply_signs(v, w[74 + k]);
            memcpy(q, &s, 8);
        }
    }
}

static void gcudai_codes_iq1_s(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    (void) mn;
    for (int64_t b = 0; b < n; ++b, w += 50) {
        const float d = gcudai_ldh(w);
        for (int g = 0; g < 8; ++g, ++sc) {
            const uint32_t h = gcudai_ld16(w + 34 + 2 * g);
            *sc = d * (float) (2 * (h >> 12 & 7) + 1) * 0.125f;
            for (int k = 0; k < 4; ++k, q += 8) {
                const uint32_t c = w[2 + 4 * g + k] | (h >> (3 * k) & 7) << 8;
                const uint64_t v = gcudai_iq1_codes(gcudai_spread_2(gcudai_grid_iq1s[c]), (h & 0x8000u) != 0);
                memcpy(q, &v, 8);
            }
        }
    }
}

static void gcudai_codes_iq1_m(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    (void) mn;
    for (int64_t b = 0; b < n; ++b, w += 56, sc += 16) {
        uint32_t s[4];
        for (int i = 0; i < 4; ++i) {
            s[i] = gcudai_ld16(w + 48 + 2 * i);
        }
        const uint32_t bits = s[0] >> 12 | s[1] >> 12 << 4 | s[2] >> 12 << 8 | s[3] >> 12 << 12;
        const float d = gcudai_fp16_to_fp32((gcuda_fp16_t) bits) * 0.125f;
        for (int t = 0; t < 16; ++t) {
            sc[t] = d * (float) (2 * (s[t / 4] >> (t % 4 * 3) & 7) + 1);
        }
        for (int g = 0; g < 32; ++g, q += 8) {
            const int h = w[32 + g / 2] >> (g % 2 * 4);
            const uint64_t digits = gcudai_spread_2(gcudai_grid_iq1s[w[g] | (h & 7) << 8]);
            const uint64_t v = gcudai_iq1_codes(digits, (h & 8) != 0);
            memcpy(q, &v, 8);
        }
    }
}

// ---- products, portable ----

// out[0..n_cols) += product of one run of weights with the columns x; n is a multiple of GCUDAI_Q_PAD. center: the mean
// code of formats with a stored minimum, so that minimum + scale * center is about the mean weight.
typedef void (*gcudai_q_dot_fn)(const uint8_t * q, const float * sc, const float * mn, float center,
                                const struct gcudai_q_col * x, int n_cols, int64_t n, float * out);

static int gcudai_q_dot_group(bool is_signed, int n, const uint8_t * q, const int8_t * u) {
    int sum = 0;
    for (int i = 0; is_signed && i < n; ++i) { sum += (int8_t) q[i] * u[i]; }
    for (int i = 0; !is_signed && i < n; ++i) { sum += q[i] * u[i]; }
    return sum;
}

static GCUDAI_INLINE void gcudai_q_dot_scalar(enum gcudai_q_kind kind, const uint8_t * q, const float * sc, const float * mn,
                                              float center, const struct gcudai_q_col * x, int n_cols, int64_t n, float * out) {
    const int group = gcudai_q_group(kind);
    for (int c = 0; c < n_cols; ++c) {
        const float * s = group == 32 ? x[c].s32 : x[c].s16, * r = group == 32 ? x[c].r32 : x[c].r16;
        float acc = 0.0f;
        for (int64_t g = 0; g < n / group; ++g) {
            const int sum = gcudai_q_dot_group(gcudai_q_is_signed(kind), group, q + g * group, x[c].q + g * group);
            acc += sc[g] * x[c].d[g * group / 32] * (float) sum;
            if (!gcudai_q_is_signed(kind)) { acc += mn[g] * s[g]; }
            if (gcudai_q_has_min(kind)) { acc += (mn[g] + center * sc[g]) * r[g]; }
        }
        out[c] += acc;
    }
}

#define GCUDAI_Q_DOT_SCALAR(name, kind)                                                                                \
    static void name(const uint8_t * q, const float * sc, const float * mn, float center,                              \
                     const struct gcudai_q_col * x, int n_cols, int64_t n, float * out) {                              \
        gcudai_q_dot_scalar(kind, q, sc, mn, center, x, n_cols, n, out);                                               \
    }
GCUDAI_Q_DOT_SCALAR(gcudai_q_dot_u32_scalar, GCUDAI_Q_U32)
GCUDAI_Q_DOT_SCALAR(gcudai_q_dot_u16_scalar, GCUDAI_Q_U16)
GCUDAI_Q_DOT_SCALAR(gcudai_q_dot_m32_scalar, GCUDAI_Q_M32)
GCUDAI_Q_DOT_SCALAR(gcudai_q_dot_m16_scalar, GCUDAI_Q_M16)
GCUDAI_Q_DOT_SCALAR(gcudai_q_dot_s32_scalar, GCUDAI_Q_S32)
GCUDAI_Q_DOT_SCALAR(gcudai_q_dot_s16_scalar, GCUDAI_Q_S16)
#undef GCUDAI_Q_DOT_SCALAR

// ---- float products ----
// Weights F32, F16 or BF16 are widened exactly; activations are F32; sums are F32, in an order that depends on the
// shape and the instruction set only. Few columns: dot products of rows as they lie in memory. Many: blocks of the
// weights are packed into panels of MR rows ([k][MR], zero-padded), activations into quads of 4 columns ([k][4]), and
// a micro-kernel keeps MR x 4 n sums in registers.
#define GCUDAI_GEMM_KC 256 // depth of a packed block: a panel of weights stays in the first-level cache
#define GCUDAI_GEMM_MT 96 // rows of a tile: a whole number of panels for every MR
#define GCUDAI_GEMM_MT_BLOCKS 256 // the same where dimension 0 of quantized blocks runs along the rows
#define GCUDAI_GEMM_MR 32 // largest MR
#define GCUDAI_GEMM_QUADS 3 // most quads a micro-kernel takes

static float gcudai_load1(enum gcuda_type type, const char * p, int64_t i) {
    float f;
    uint16_t h;
    if (type == GCUDA_TYPE_F32) {
        memcpy(&f, p + 4 * i, sizeof(f));
        return f;
    }
    memcpy(&h, p + 2 * i, sizeof(h));
    return type == GCUDA_TYPE_F16 ? gcudai_fp16_to_fp32(h) : gcudai_bits_f32((uint32_t) h << 16);
}

// both rows may lie at any address
static float gcudai_dot_one_scalar(enum gcuda_type type, const char * w, const char * x, int64_t n) {
    const enum gcuda_type f32 = GCUDA_TYPE_F32;
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        s0 += gcudai_load1(type, w, i) * gcudai_load1(f32, x, i);
        s1 += gcudai_load1(type, w, i + 1) * gcudai_load1(f32, x, i + 1);
        s2 += gcudai_load1(type, w, i + 2) * gcudai_load1(f32, x, i + 2);
        s3 += gcudai_load1(type, w, i + 3) * gcudai_load1(f32, x, i + 3);
    }
    for (; i < n; ++i) { s0 += gcudai_load1(type, w, i) * gcudai_load1(f32, x, i); }
    return (s0 + s1) + (s2 + s3);
}

static void gcudai_dot_f32_scalar(const char * w, const char * const * x, int n_cols, int64_t n, float * out) {
    for (int c = 0; c < n_cols; ++c) { out[c] = gcudai_dot_one_scalar(GCUDA_TYPE_F32, w, x[c], n); }
}

static void gcudai_dot_f16_scalar(const char * w, const char * const * x, int n_cols, int64_t n, float * out) {
    for (int c = 0; c < n_cols; ++c) { out[c] = gcudai_dot_one_scalar(GCUDA_TYPE_F16, w, x[c], n); }
}

static void gcudai_dot_bf16_scalar(const char * w, const char * const * x, int n_cols, int64_t n, float * out) {
    for (int c = 0; c < n_cols; ++c) { out[c] = gcudai_dot_one_scalar(GCUDA_TYPE_BF16, w, x[c], n); }
}

// Rows r0..r1 of a panel, elements k0..k1: out[k * mr + r]. 16 elements at a time, so that the lines written stay cached.
static void gcudai_pack_part(enum gcuda_type type, const char * w, size_t nb, int r0, int r1, int64_t k0, int64_t k1, int mr, float * out) {
    for (int64_t k = k0; k < k1; k += 16) {
        const int64_t end = k + 16 < k1 ? k + 16 : k1;
        for (int r = r0; r < r1; ++r) {
            const char * row = w + (size_t) r * nb;
            for (int64_t i = k; i < end; ++i) { out[i * mr + r] = gcudai_load1(type, row, i); }
        }
    }
}

static void gcudai_pack_scalar(enum gcuda_type type, const char * w, size_t nb, int n_rows, int64_t kc, int mr, float * out) {
    gcudai_pack_part(type, w, nb, 0, n_rows, 0, kc, mr, out);
}

// c[j * ldc + r] (+)= sum over k of a[k][r] * b[j / 4][k][j % 4]; quads of b lie b_step floats apart
static void gcudai_gemm_scalar(int64_t kc, const float * a, const float * b, int64_t b_step, int n_quads, float * c, int64_t ldc, bool add) {
    for (int q = 0; q < n_quads; ++q, b += b_step, c += 4 * ldc) {
        float acc[4][8];
        memset(acc, 0, sizeof(acc));
        for (int64_t k = 0; k < kc; ++k) {
            const float * av = a + 8 * k, * bv = b + 4 * k;
            for (int j = 0; j < 4; ++j) {
                const float v = bv[j];
                for (int r = 0; r < 8; ++r) { acc[j][r] += av[r] * v; }
            }
        }
        for (int j = 0; j < 4; ++j) {
            for (int r = 0; r < 8; ++r) { c[j * ldc + r] = add ? c[j * ldc + r] + acc[j][r] : acc[j][r]; }
        }
    }
}

// Many columns: 32 rows of expanded codes are interleaved so that a lane belongs to a row, and every four activations
// are broadcast to all of them. Per 32 elements: codes [8][32 rows][4 bytes]; per scale: [32 rows] scales, [32 rows]
// minima, mean weights. Signed codes are moved up by 128 and get the minimum -128 * scale.
#define GCUDAI_Q_PANEL_ROWS 32
#define GCUDAI_Q_PANEL_K 512 // elements of a panel

struct gcudai_q_panel {
    uint8_t codes[GCUDAI_Q_PANEL_K * GCUDAI_Q_PANEL_ROWS];
    float sc[GCUDAI_Q_PANEL_K / 16 * GCUDAI_Q_PANEL_ROWS];
    float mn[GCUDAI_Q_PANEL_K / 16 * GCUDAI_Q_PANEL_ROWS];
    float mean[GCUDAI_Q_PANEL_K / 16 * GCUDAI_Q_PANEL_ROWS];
};

#if GCUDAI_HAVE_X86_SIMD
GCUDAI_SIMD_BEGIN

// ---- expansion of each format, AVX2 (also used with AVX-512: it is bound by loads and stores) ----

GCUDAI_TARGET_AVX2 static __m256i gcudai_avx2_load(const void * p) {
    return _mm256_loadu_si256((const __m256i *) p);
}

GCUDAI_TARGET_AVX2 static void gcudai_avx2_store(void * p, __m256i v) {
    _mm256_storeu_si256((__m256i *) p, v);
}

GCUDAI_TARGET_AVX2 static float gcudai_avx2_ldh(const uint8_t * p) {
    return _cvtsh_ss(gcudai_ld16(p));
}

// 16 bytes to 32 codes: low nibbles first
GCUDAI_TARGET_AVX2 static __m256i gcudai_avx2_nibbles(const uint8_t * p) {
    const __m128i v = _mm_loadu_si128((const __m128i *) (const void *) p);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(v, 4), v), _mm256_set1_epi8(15));
}

// byte i is 16 where bit i of qh is set
GCUDAI_TARGET_AVX2 static __m256i gcudai_avx2_fifth_bits(uint32_t qh) {
    const __m256i byte = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,
                                          2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x((long long) 0x8040201008040201u);
    const __m256i v = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int) qh), byte), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(v, bit), _mm256_set1_epi8(16));
}

GCUDAI_TARGET_AVX2 static void gcudai_codes_q4_0_avx2(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    for (int64_t b = 0; b < n; ++b, w += 18, q += 32) {
        sc[b] = gcudai_avx2_ldh(w);
        mn[b] = -8.0f * sc[b];
        gcudai_avx2_store(q, gcudai_avx2_nibbles(w + 2));
    }
}

GCUDAI_TARGET_AVX2 static void gcudai_codes_q4_1_avx2(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    for (int64_t b = 0; b < n; ++b, w += 20, q += 32) {
        sc[b] = gcudai_avx2_ldh(w);
        mn[b] = gcudai_avx2_ldh(w + 2);
        gcudai_avx2_store(q, gcudai_avx2_nibbles(w + 4));
    }
}

GCUDAI_TARGET_AVX2 static void gcudai_codes_q5_0_avx2(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    for (int64_t b = 0; b < n; ++b, w += 22, q += 32) {
        sc[b] = gcudai_avx2_ldh(w);
        mn[b] = -16.0f * sc[b];
        gcudai_avx2_store(q, _mm256_or_si256(gcudai_avx2_nibbles(w + 6), gcudai_avx2_fifth_bits(gcudai_ld32(w + 2))));
    }
}

GCUDAI_TARGET_AVX2 static void gcudai_codes_q5_1_avx2(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    for (int64_t b = 0; b < n; ++b, w += 24, q += 32) {
        sc[b] = gcudai_avx2_ldh(w);
        mn[b] = gcudai_avx2_ldh(w + 2);
        gcudai_avx2_store(q, _mm256_or_si256(gcudai_avx2_nibbles(w + 8), gcudai_avx2_fifth_bits(gcudai_ld32(w + 4))));
    }
}

GCUDAI_TARGET_AVX2 static void gcudai_codes_q8_0_avx2(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    (void) mn;
    for (int64_t b = 0; b < n; ++b, w += 34, q += 32) {
        sc[b] = gcudai_avx2_ldh(w);
        gcudai_avx2_store(q, gcudai_avx2_load(w + 2));
    }
}

GCUDAI_TARGET_AVX2 static __m256i gcudai_avx2_table16(const int8_t * table) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) (const void *) table));
}

GCUDAI_TARGET_AVX2 static void gcudai_codes_iq4_nl_avx2(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    const __m256i table = gcudai_avx2_table16(gcudai_kvalues_iq4nl);
    (void) mn;
    for (int64_t b = 0; b < n; ++b, w += 18, q += 32) {
        sc[b] = gcudai_avx2_ldh(w);
        gcudai_avx2_store(q, _mm256_shuffle_epi8(table, gcudai_avx2_nibbles(w + 2)));
    }
}

GCUDAI_TARGET_AVX2 static void gcudai_codes_mxfp4_avx2(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    const __m256i table = gcudai_avx2_table16(gcudai_kvalues_mxfp4);
    (void) mn;
    for (int64_t b = 0; b < n; ++b, w += 17, q += 32) {
        sc[b] = gcudai_mxfp4_scale(w[0]);
        gcudai_avx2_store(q, _mm256_shuffle_epi8(table, gcudai_avx2_nibbles(w + 1)));
    }
}

GCUDAI_TARGET_AVX2 static void gcudai_codes_iq4_xs_avx2(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    const __m256i table = gcudai_avx2_table16(gcudai_kvalues_iq4nl);
    (void) mn;
    for (int64_t b = 0; b < n; ++b, w += 136, sc += 8) {
        gcudai_iq4_xs_floats(w, sc);
        for (int g = 0; g < 8; ++g, q += 32) {
            gcudai_avx2_store(q, _mm256_shuffle_epi8(table, gcudai_avx2_nibbles(w + 8 + 16 * g)));
        }
    }
}

// eight unsigned bytes times a factor
GCUDAI_TARGET_AVX2 static __m256 gcudai_avx2_bytes_times(__m128i bytes, float f) {
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), _mm256_set1_ps(f));
}

GCUDAI_TARGET_AVX2 static void gcudai_avx2_crumbs(__m256i v, uint8_t * q) {
    const __m256i three = _mm256_set1_epi8(3);
    gcudai_avx2_store(q, _mm256_and_si256(v, three));
    gcudai_avx2_store(q + 32, _mm256_and_si256(_mm256_srli_epi16(v, 2), three));
    gcudai_avx2_store(q + 64, _mm256_and_si256(_mm256_srli_epi16(v, 4), three));
    gcudai_avx2_store(q + 96, _mm256_and_si256(_mm256_srli_epi16(v, 6), three));
}

GCUDAI_TARGET_AVX2 static void gcudai_codes_q2_k_avx2(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    const __m128i low = _mm_set1_epi8(15);
    for (int64_t b = 0; b < n; ++b, w += 84, q += 256, sc += 16, mn += 16) {
        const float d = gcudai_avx2_ldh(w + 80), dmin = -gcudai_avx2_ldh(w + 82);
        const __m128i v = _mm_loadu_si128((const __m128i *) (const void *) w);
        const __m128i s = _mm_and_si128(v, low), m = _mm_and_si128(_mm_srli_epi16(v, 4), low);
        _mm256_storeu_ps(sc, gcudai_avx2_bytes_times(s, d));
        _mm256_storeu_ps(sc + 8, gcudai_avx2_bytes_times(_mm_srli_si128(s, 8), d));
        _mm256_storeu_ps(mn, gcudai_avx2_bytes_times(m, dmin));
        _mm256_storeu_ps(mn + 8, gcudai_avx2_bytes_times(_mm_srli_si128(m, 8), dmin));
        gcudai_avx2_crumbs(gcudai_avx2_load(w + 16), q);
        gcudai_avx2_crumbs(gcudai_avx2_load(w + 48), q + 128);
    }
}

GCUDAI_TARGET_AVX2 static __m256 gcudai_avx2_q3_k_floats(const uint32_t * packed, float d) {
    const __m128i v = _mm_sub_epi8(_mm_loadl_epi64((const __m128i *) (const void *) packed), _mm_set1_epi8(32));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)), _mm256_set1_ps(d));
}

// codes of one group of 32 in Q3_K: two bits of v at shift s, one bit of hm at position g
#define GCUDAI_AVX2_Q3_K(v, s, g)                                                                          \
    gcudai_avx2_store(q + 32 * (g), _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(v, s), three),      \
        _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(hm, _mm256_set1_epi8((char) (1 << (g)))), zero), four) ))

GCUDAI_TARGET_AVX2 static void gcudai_codes_q3_k_avx2(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    const __m256i three = _mm256_set1_epi8(3), four = _mm256_set1_epi8(4), zero = _mm256_setzero_si256();
    for (int64_t b = 0; b < n; ++b, w += 110, q += 256, sc += 16, mn += 16) {
        const float d = gcudai_avx2_ldh(w + 108);
        uint32_t packed[4];
        gcudai_q3_k_scales(w + 96, packed);
        for (int h = 0; h < 2; ++h) {
            const __m256 s = gcudai_avx2_q3_k_floats(packed + 2 * h, d);
            _mm256_storeu_ps(sc + 8 * h, s);
            _mm256_storeu_ps(mn + 8 * h, _mm256_mul_ps(s, _mm256_set1_ps(-4.0f)));
        }
        const __m256i hm = _mm256_xor_si256(gcudai_avx2_load(w), _mm256_set1_epi8(-1)); // cmpeq finds clear bits
        const __m256i v0 = gcudai_avx2_load(w + 32), v1 = gcudai_avx2_load(w + 64);
        GCUDAI_AVX2_Q3_K(v0, 0, 0);
        GCUDAI_AVX2_Q3_K(v0, 2, 1);
        GCUDAI_AVX2_Q3_K(v0, 4, 2);
        GCUDAI_AVX2_Q3_K(v0, 6, 3);
        GCUDAI_AVX2_Q3_K(v1, 0, 4);
        GCUDAI_AVX2_Q3_K(v1, 2, 5);
        GCUDAI_AVX2_Q3_K(v1, 4, 6);
        GCUDAI_AVX2_Q3_K(v1, 6, 7);
    }
}
#undef GCUDAI_AVX2_Q3_K

GCUDAI_TARGET_AVX2 static void gcudai_avx2_q4_k_floats(const uint8_t * w, float * sc, float * mn) {
    uint32_t packed[4];
    gcudai_q4_k_scales(w + 4, packed);
    const __m128i s = _mm_loadl_epi64((const __m128i *) (const void *) packed);
    const __m128i m = _mm_loadl_epi64((const __m128i *) (const void *) (packed + 2));
    _mm256_storeu_ps(sc, gcudai_avx2_bytes_times(s, gcudai_avx2_ldh(w)));
    _mm256_storeu_ps(mn, gcudai_avx2_bytes_times(m, -gcudai_avx2_ldh(w + 2)));
}

GCUDAI_TARGET_AVX2 static void gcudai_codes_q4_k_avx2(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    const __m256i low = _mm256_set1_epi8(15);
    for (int64_t b = 0; b < n; ++b, w += 144, q += 256, sc += 8, mn += 8) {
        gcudai_avx2_q4_k_floats(w, sc, mn);
        for (int h = 0; h < 4; ++h) {
            const __m256i v = gcudai_avx2_load(w + 16 + 32 * h);
            gcudai_avx2_store(q + 64 * h, _mm256_and_si256(v, low));
            gcudai_avx2_store(q + 64 * h + 32, _mm256_and_si256(_mm256_srli_epi16(v, 4), low));
        }
    }
}

GCUDAI_TARGET_AVX2 static void gcudai_codes_q5_k_avx2(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    const __m256i low = _mm256_set1_epi8(15), bit4 = _mm256_set1_epi8(16);
    for (int64_t b = 0; b < n; ++b, w += 176, q += 256, sc += 8, mn += 8) {
        __m256i high = gcudai_avx2_load(w + 16); // bit g of byte l belongs to element l of group g
        gcudai_avx2_q4_k_floats(w, sc, mn);
        for (int h = 0; h < 4; ++h) {
            const __m256i v = gcudai_avx2_load(w + 48 + 32 * h);
            const __m256i h0 = _mm256_and_si256(_mm256_slli_epi16(high, 4), bit4);
            const __m256i h1 = _mm256_and_si256(_mm256_slli_epi16(high, 3), bit4);
            gcudai_avx2_store(q + 64 * h, _mm256_or_si256(_mm256_and_si256(v, low), h0));
            gcudai_avx2_store(q + 64 * h + 32, _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(v, 4), low), h1));
            high = _mm256_srli_epi16(high, 2);
        }
    }
}

GCUDAI_TARGET_AVX2 static void gcudai_avx2_q6_k_half(const uint8_t * ql, const uint8_t * qh, uint8_t * q) {
    const __m256i low = _mm256_set1_epi8(15), mask = _mm256_set1_epi8(0x30);
    const __m256i a = gcudai_avx2_load(ql), b = gcudai_avx2_load(ql + 32), h = gcudai_avx2_load(qh);
    const __m256i h0 = _mm256_and_si256(_mm256_slli_epi16(h, 4), mask), h1 = _mm256_and_si256(_mm256_slli_epi16(h, 2), mask);
    const __m256i h2 = _mm256_and_si256(h, mask), h3 = _mm256_and_si256(_mm256_srli_epi16(h, 2), mask);
    gcudai_avx2_store(q, _mm256_or_si256(_mm256_and_si256(a, low), h0));
    gcudai_avx2_store(q + 32, _mm256_or_si256(_mm256_and_si256(b, low), h1));
    gcudai_avx2_store(q + 64, _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), low), h2));
    gcudai_avx2_store(q + 96, _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(b, 4), low), h3));
}

GCUDAI_TARGET_AVX2 static void gcudai_codes_q6_k_avx2(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    for (int64_t b = 0; b < n; ++b, w += 210, q += 256, sc += 16, mn += 16) {
        const __m256 d = _mm256_set1_ps(gcudai_avx2_ldh(w + 208));
        for (int h = 0; h < 2; ++h) {
            const __m128i v = _mm_loadl_epi64((const __m128i *) (const void *) (w + 192 + 8 * h));
            const __m256 s = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)), d);
            _mm256_storeu_ps(sc + 8 * h, s);
            _mm256_storeu_ps(mn + 8 * h, _mm256_mul_ps(s, _mm256_set1_ps(-32.0f)));
            gcudai_avx2_q6_k_half(w + 64 * h, w + 128 + 32 * h, q + 128 * h);
        }
    }
}

// ---- activations, AVX2 ----

GCUDAI_TARGET_AVX2 static float gcudai_avx2_max(__m256 v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

GCUDAI_TARGET_AVX2 static float gcudai_avx2_sum(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

GCUDAI_TARGET_AVX2 static int gcudai_avx2_sum_epi32(__m128i v) {
    v = _mm_add_epi32(v, _mm_unpackhi_epi64(v, v));
    return _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32(v, 1)));
}

GCUDAI_TARGET_AVX2 static void gcudai_q_block_avx2(const float * x, const struct gcudai_q_col * c) {
    const __m256 sign = _mm256_set1_ps(-0.0f), limit = _mm256_set1_ps(FLT_MAX);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256 v0 = _mm256_loadu_ps(x), v1 = _mm256_loadu_ps(x + 8), v2 = _mm256_loadu_ps(x + 16), v3 = _mm256_loadu_ps(x + 24);
    const __m256 a0 = _mm256_andnot_ps(sign, v0), a1 = _mm256_andnot_ps(sign, v1);
    const __m256 a2 = _mm256_andnot_ps(sign, v2), a3 = _mm256_andnot_ps(sign, v3);
    const __m256 ok01 = _mm256_and_ps(_mm256_cmp_ps(a0, limit, _CMP_LE_OQ), _mm256_cmp_ps(a1, limit, _CMP_LE_OQ));
    const __m256 ok23 = _mm256_and_ps(_mm256_cmp_ps(a2, limit, _CMP_LE_OQ), _mm256_cmp_ps(a3, limit, _CMP_LE_OQ));
    const float amax = gcudai_avx2_max(_mm256_max_ps(_mm256_max_ps(a0, a1), _mm256_max_ps(a2, a3)));
    if (_mm256_movemask_ps(_mm256_and_ps(ok01, ok23)) != 255 || amax < 1e-36f) {
        gcudai_q_block(x, c);
        return;
    }
    const __m256 id = _mm256_set1_ps(127.0f / amax);
    const __m256 f0 = _mm256_mul_ps(v0, id), f1 = _mm256_mul_ps(v1, id), f2 = _mm256_mul_ps(v2, id), f3 = _mm256_mul_ps(v3, id);
    const __m256i i0 = _mm256_cvtps_epi32(f0), i1 = _mm256_cvtps_epi32(f1), i2 = _mm256_cvtps_epi32(f2), i3 = _mm256_cvtps_epi32(f3);
    const __m256i p = _mm256_packs_epi16(_mm256_packs_epi32(i0, i1), _mm256_packs_epi32(i2, i3));
    gcudai_avx2_store(c->q, _mm256_permutevar8x32_epi32(p, order));
    const __m256i t0 = _mm256_add_epi32(i0, i1), t1 = _mm256_add_epi32(i2, i3);
    const int sum[2] = { gcudai_avx2_sum_epi32(_mm_add_epi32(_mm256_castsi256_si128(t0), _mm256_extracti128_si256(t0, 1))),
                         gcudai_avx2_sum_epi32(_mm_add_epi32(_mm256_castsi256_si128(t1), _mm256_extracti128_si256(t1, 1))) };
    const float exact[2] = { gcudai_avx2_sum(_mm256_add_ps(f0, f1)), gcudai_avx2_sum(_mm256_add_ps(f2, f3)) };
    gcudai_q_sums(c, amax / 127.0f, sum, exact);
}

GCUDAI_TARGET_AVX2 static void gcudai_q_blocks_avx2(const float * x, int n, const struct gcudai_q_col * c) {
    for (int g = 0; g < n; ++g) {
        const struct gcudai_q_col to = gcudai_q_col_skip(c, g);
        gcudai_q_block_avx2(x + 32 * g, &to);
    }
}

// ---- products, AVX2 ----

// scale * d of up to 8 groups of 32 (two per group when a scale belongs to 16 elements)
GCUDAI_TARGET_AVX2 static GCUDAI_INLINE void gcudai_avx2_q_scales(bool per16, const float * sc, const float * d, float * out) {
    const __m256 v = _mm256_loadu_ps(d);
    if (!per16) {
        _mm256_storeu_ps(out, _mm256_mul_ps(v, _mm256_loadu_ps(sc)));
        return;
    }
    const __m256 lo = _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
    const __m256 hi = _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7));
    _mm256_storeu_ps(out, _mm256_mul_ps(lo, _mm256_loadu_ps(sc)));
    _mm256_storeu_ps(out + 8, _mm256_mul_ps(hi, _mm256_loadu_ps(sc + 8)));
}

// 32 products of codes w and activations u, times their scales, added to acc
GCUDAI_TARGET_AVX2 static GCUDAI_INLINE __m256 gcudai_avx2_q_step(bool is_signed, bool per16, __m256i w, const int8_t * u,
                                                                  const float * scale, __m256 acc) {
    const __m256i x = gcudai_avx2_load(u);
    // pairs stay below 32768: 2 * 63 * 127 unsigned, 2 * 128 * 127 signed
    const __m256i pairs = is_signed ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)) : _mm256_maddubs_epi16(w, x);
    const __m256 sums = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    const __m256 s = per16 ? _mm256_set_m128(_mm_broadcast_ss(scale + 1), _mm_broadcast_ss(scale)) : _mm256_broadcast_ss(scale);
    return _mm256_fmadd_ps(sums, s, acc);
}

// minima (and mean weights) of 8 scales times the sums of their activations
GCUDAI_TARGET_AVX2 static GCUDAI_INLINE __m256 gcudai_avx2_q_mins8(bool has_min, const float * sc, const float * mn, float center,
                                                                   const float * s, const float * r, __m256 acc) {
    const __m256 m = _mm256_loadu_ps(mn);
    acc = _mm256_fmadd_ps(m, _mm256_loadu_ps(s), acc);
    if (!has_min) { return acc; }
    return _mm256_fmadd_ps(_mm256_fmadd_ps(_mm256_loadu_ps(sc), _mm256_set1_ps(center), m), _mm256_loadu_ps(r), acc);
}

GCUDAI_TARGET_AVX2 static GCUDAI_INLINE __m256 gcudai_avx2_q_mins(enum gcudai_q_kind kind, const float * sc, const float * mn, float center,
                                                                  const struct gcudai_q_col * x, int64_t g, __m256 acc) {
    const bool has_min = gcudai_q_has_min(kind);
    if (gcudai_q_is_signed(kind)) { return acc; }
    if (gcudai_q_group(kind) == 32) { return gcudai_avx2_q_mins8(has_min, sc + g, mn + g, center, x->s32 + g, x->r32 + g, acc); }
    sc += 2 * g;
    mn += 2 * g;
    acc = gcudai_avx2_q_mins8(has_min, sc, mn, center, x->s16 + 2 * g, x->r16 + 2 * g, acc);
    return gcudai_avx2_q_mins8(has_min, sc + 8, mn + 8, center, x->s16 + 2 * g + 8, x->r16 + 2 * g + 8, acc);
}

GCUDAI_TARGET_AVX2 static GCUDAI_INLINE void gcudai_avx2_q_dot1(enum gcudai_q_kind kind, const uint8_t * q, const float * sc, const float * mn,
                                                                float center, const struct gcudai_q_col * x, int64_t n, float * out) {
    const bool is_signed = gcudai_q_is_signed(kind), per16 = gcudai_q_group(kind) == 16;
    const int step = per16 ? 2 : 1;
    __m256 a = _mm256_setzero_ps(), b = a;
    float s[16];
    for (int64_t g = 0; g < n / 32; g += 8) {
        gcudai_avx2_q_scales(per16, sc + step * g, x->d + g, s);
        for (int j = 0; j < 8; j += 2) {
            const int64_t i = 32 * (g + j);
            a = gcudai_avx2_q_step(is_signed, per16, gcudai_avx2_load(q + i), x->q + i, s + step * j, a);
            b = gcudai_avx2_q_step(is_signed, per16, gcudai_avx2_load(q + i + 32), x->q + i + 32, s + step * (j + 1), b);
        }
        a = gcudai_avx2_q_mins(kind, sc, mn, center, x, g, a);
    }
    out[0] += gcudai_avx2_sum(_mm256_add_ps(a, b));
}

GCUDAI_TARGET_AVX2 static GCUDAI_INLINE void gcudai_avx2_q_dot4(enum gcudai_q_kind kind, const uint8_t * q, const float * sc, const float * mn,
                                                                float center, const struct gcudai_q_col * x, int64_t n, float * out) {
    const bool is_signed = gcudai_q_is_signed(kind), per16 = gcudai_q_group(kind) == 16;
    const int step = per16 ? 2 : 1;
    __m256 a = _mm256_setzero_ps(), b = a, c = a, d = a;
    float s[4][16];
    for (int64_t g = 0; g < n / 32; g += 8) {
        for (int k = 0; k < 4; ++k) { gcudai_avx2_q_scales(per16, sc + step * g, x[k].d + g, s[k]); }
        for (int j = 0; j < 8; ++j) {
            const int64_t i = 32 * (g + j);
            const __m256i w = gcudai_avx2_load(q + i);
            a = gcudai_avx2_q_step(is_signed, per16, w, x[0].q + i, s[0] + step * j, a);
            b = gcudai_avx2_q_step(is_signed, per16, w, x[1].q + i, s[1] + step * j, b);
            c = gcudai_avx2_q_step(is_signed, per16, w, x[2].q + i, s[2] + step * j, c);
            d = gcudai_avx2_q_step(is_signed, per16, w, x[3].q + i, s[3] + step * j, d);
        }
        a = gcudai_avx2_q_mins(kind, sc, mn, center, x, g, a);
        b = gcudai_avx2_q_mins(kind, sc, mn, center, x + 1, g, b);
        c = gcudai_avx2_q_mins(kind, sc, mn, center, x + 2, g, c);
        d = gcudai_avx2_q_mins(kind, sc, mn, center, x + 3, g, d);
    }
    out[0] += gcudai_avx2_sum(a);
    out[1] += gcudai_avx2_sum(b);
    out[2] += gcudai_avx2_sum(c);
    out[3] += gcudai_avx2_sum(d);
}

#define GCUDAI_Q_DOT_AVX2(name, kind)                                                                                  \
    GCUDAI_TARGET_AVX2 static void name(const uint8_t * q, const float * sc, const float * mn, float center,           \
                                        const struct gcudai_q_col * x, int n_cols, int64_t n, float * out) {           \
        int c = 0;                                                                                                     \
        for (; c + 4 <= n_cols; c += 4) { gcudai_avx2_q_dot4(kind, q, sc, mn, center, x + c, n, out + c); }            \
        for (; c < n_cols; ++c) { gcudai_avx2_q_dot1(kind, q, sc, mn, center, x + c, n, out + c); }                    \
    }
GCUDAI_Q_DOT_AVX2(gcudai_q_dot_u32_avx2, GCUDAI_Q_U32)
GCUDAI_Q_DOT_AVX2(gcudai_q_dot_u16_avx2, GCUDAI_Q_U16)
GCUDAI_Q_DOT_AVX2(gcudai_q_dot_m32_avx2, GCUDAI_Q_M32)
GCUDAI_Q_DOT_AVX2(gcudai_q_dot_m16_avx2, GCUDAI_Q_M16)
GCUDAI_Q_DOT_AVX2(gcudai_q_dot_s32_avx2, GCUDAI_Q_S32)
GCUDAI_Q_DOT_AVX2(gcudai_q_dot_s16_avx2, GCUDAI_Q_S16)
#undef GCUDAI_Q_DOT_AVX2

// ---- products, AVX-512 with VNNI ----

// Products of 64 codes and activations as 16 sums of four. The instruction multiplies unsigned by signed bytes, so
// signed codes are moved up by 128; the caller takes 128 * scale * (sum of activations) off again.
GCUDAI_TARGET_AVX512VNNI static GCUDAI_INLINE __m512 gcudai_vnni_q_sums(bool is_signed, const uint8_t * q, const int8_t * u) {
    __m512i w = _mm512_loadu_si512((const void *) q);
    if (is_signed) { w = _mm512_xor_si512(w, _mm512_set1_epi8((char) -128)); }
    return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), w, _mm512_loadu_si512((const void *) u)));
}

GCUDAI_TARGET_AVX512VNNI static GCUDAI_INLINE __m512 gcudai_vnni_q_scales(bool per16, const float * sc, const float * d) {
    const __m512 v = _mm512_castps256_ps512(_mm256_loadu_ps(d));
    if (!per16) { return _mm512_mul_ps(v, _mm512_castps256_ps512(_mm256_loadu_ps(sc))); }
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_mul_ps(_mm512_permutexvar_ps(twice, v), _mm512_loadu_ps(sc));
}

// lane -> scale: lanes 0..7 and 8..15 are two groups of 32, or lanes 4 k .. 4 k + 3 are four groups of 16
GCUDAI_TARGET_AVX512VNNI static GCUDAI_INLINE __m512i gcudai_vnni_q_lanes(bool per16, int j) {
    return per16 ? _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3), _mm512_set1_epi32(4 * j)) :
                   _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), _mm512_set1_epi32(2 * j));
}

// 16 floats, or 8 and zeros
GCUDAI_TARGET_AVX512VNNI static GCUDAI_INLINE __m512 gcudai_vnni_load(bool per16, const float * p) {
    return per16 ? _mm512_loadu_ps(p) : _mm512_zextps256_ps512(_mm256_loadu_ps(p));
}

// Minima (and mean weights) times sums of activations; for signed codes the scale stands in for a minimum of 1.
GCUDAI_TARGET_AVX512VNNI static GCUDAI_INLINE __m512 gcudai_vnni_q_mins(enum gcudai_q_kind kind, const float * sc, const float * mn, float center,
                                                                        const struct gcudai_q_col * x, int64_t g, __m512 acc) {
    const bool per16 = gcudai_q_group(kind) == 16;
    const int64_t i = per16 ? 2 * g : g;
    const __m512 m = gcudai_vnni_load(per16, gcudai_q_is_signed(kind) ? sc + i : mn + i);
    acc = _mm512_fmadd_ps(m, gcudai_vnni_load(per16, per16 ? x->s16 + i : x->s32 + i), acc);
    if (!gcudai_q_has_min(kind)) { return acc; }
    const __m512 mean = _mm512_fmadd_ps(gcudai_vnni_load(per16, sc + i), _mm512_set1_ps(center), m);
    return _mm512_fmadd_ps(mean, gcudai_vnni_load(per16, per16 ? x->r16 + i : x->r32 + i), acc);
}

GCUDAI_TARGET_AVX512VNNI static GCUDAI_INLINE float gcudai_vnni_q_end(bool is_signed, __m512 acc, __m512 mins) {
    return _mm512_reduce_add_ps(is_signed ? _mm512_fmadd_ps(mins, _mm512_set1_ps(-128.0f), acc) : _mm512_add_ps(acc, mins));
}

GCUDAI_TARGET_AVX512VNNI static GCUDAI_INLINE void gcudai_vnni_q_dot1(enum gcudai_q_kind kind, const uint8_t * q, const float * sc, const float * mn,
                                                                      float center, const struct gcudai_q_col * x, int64_t n, float * out) {
    const bool is_signed = gcudai_q_is_signed(kind), per16 = gcudai_q_group(kind) == 16;
    const int step = per16 ? 2 : 1;
    const __m512i l0 = gcudai_vnni_q_lanes(per16, 0), l1 = gcudai_vnni_q_lanes(per16, 1);
    const __m512i l2 = gcudai_vnni_q_lanes(per16, 2), l3 = gcudai_vnni_q_lanes(per16, 3);
    __m512 a = _mm512_setzero_ps(), b = a, m = a;
    for (int64_t g = 0; g < n / 32; g += 8) {
        const __m512 s = gcudai_vnni_q_scales(per16, sc + step * g, x->d + g);
        const uint8_t * w = q + 32 * g;
        const int8_t * u = x->q + 32 * g;
        a = _mm512_fmadd_ps(gcudai_vnni_q_sums(is_signed, w, u), _mm512_permutexvar_ps(l0, s), a);
        b = _mm512_fmadd_ps(gcudai_vnni_q_sums(is_signed, w + 64, u + 64), _mm512_permutexvar_ps(l1, s), b);
        a = _mm512_fmadd_ps(gcudai_vnni_q_sums(is_signed, w + 128, u + 128), _mm512_permutexvar_ps(l2, s), a);
        b = _mm512_fmadd_ps(gcudai_vnni_q_sums(is_signed, w + 192, u + 192), _mm512_permutexvar_ps(l3, s), b);
        m = gcudai_vnni_q_mins(kind, sc, mn, center, x, g, m);
    }
    out[0] += gcudai_vnni_q_end(is_signed, _mm512_add_ps(a, b), m);
}

#define GCUDAI_Q_DOT_VNNI(name, kind)                                                                                  \
    GCUDAI_TARGET_AVX512VNNI static void name(const uint8_t * q, const float * sc, const float * mn, float center,     \
                                              const struct gcudai_q_col * x, int n_cols, int64_t n, float * out) {     \
        for (int c = 0; c < n_cols; ++c) { gcudai_vnni_q_dot1(kind, q, sc, mn, center, x + c, n, out + c); }           \
    }
GCUDAI_Q_DOT_VNNI(gcudai_q_dot_u32_vnni, GCUDAI_Q_U32)
GCUDAI_Q_DOT_VNNI(gcudai_q_dot_u16_vnni, GCUDAI_Q_U16)
GCUDAI_Q_DOT_VNNI(gcudai_q_dot_m32_vnni, GCUDAI_Q_M32)
GCUDAI_Q_DOT_VNNI(gcudai_q_dot_m16_vnni, GCUDAI_Q_M16)
GCUDAI_Q_DOT_VNNI(gcudai_q_dot_s32_vnni, GCUDAI_Q_S32)
GCUDAI_Q_DOT_VNNI(gcudai_q_dot_s16_vnni, GCUDAI_Q_S16)
#undef GCUDAI_Q_DOT_VNNI

// 4 rows x 16 codes into a panel: out is lane r of step 0; a step is 128 bytes
GCUDAI_TARGET_AVX512VNNI static GCUDAI_INLINE void gcudai_vnni_interleave(const uint8_t * q, size_t row, __m128i flip, uint8_t * out) {
    const __m128i a = _mm_xor_si128(flip, _mm_loadu_si128((const __m128i *) (const void *) q));
    const __m128i b = _mm_xor_si128(flip, _mm_loadu_si128((const __m128i *) (const void *) (q + row)));
    const __m128i c = _mm_xor_si128(flip, _mm_loadu_si128((const __m128i *) (const void *) (q + 2 * row)));
    const __m128i d = _mm_xor_si128(flip, _mm_loadu_si128((const __m128i *) (const void *) (q + 3 * row)));
    const __m128i ab0 = _mm_unpacklo_epi32(a, b), ab1 = _mm_unpackhi_epi32(a, b);
    const __m128i cd0 = _mm_unpacklo_epi32(c, d), cd1 = _mm_unpackhi_epi32(c, d);
    _mm_storeu_si128((__m128i *) (void *) out, _mm_unpacklo_epi64(ab0, cd0));
    _mm_storeu_si128((__m128i *) (void *) (out + 128), _mm_unpackhi_epi64(ab0, cd0));
    _mm_storeu_si128((__m128i *) (void *) (out + 256), _mm_unpacklo_epi64(ab1, cd1));
    _mm_storeu_si128((__m128i *) (void *) (out + 384), _mm_unpackhi_epi64(ab1, cd1));
}

// rows r .. r + 3 of a panel from four expanded rows of n codes each
GCUDAI_TARGET_AVX512VNNI static void gcudai_q_panel_rows_vnni(enum gcudai_q_kind kind, const uint8_t * q, const float * sc, const float * mn,
                                                              float center, int64_t n, int r, struct gcudai_q_panel * p) {
    const bool is_signed = gcudai_q_is_signed(kind);
    const int64_t scales = n / gcudai_q_group(kind);
    const __m128i flip = _mm_set1_epi8(is_signed ? (char) -128 : 0);
    for (int64_t k = 0; k < n; k += 16) {
        gcudai_vnni_interleave(q + k, (size_t) n, flip, p->codes + k * GCUDAI_Q_PANEL_ROWS + 4 * r);
    }
    for (int i = 0; i < 4; ++i, sc += scales, mn += scales) {
        for (int64_t g = 0; g < scales; ++g) {
            const int64_t at = g * GCUDAI_Q_PANEL_ROWS + r + i;
            p->sc[at] = sc[g];
            p->mn[at] = is_signed ? -128.0f * sc[g] : mn[g];
            p->mean[at] = is_signed ? 0.0f : mn[g] + center * sc[g];
        }
    }
}

#define GCUDAI_VNNI_STEP(c)                                                                        \
    u = _mm512_set1_epi32((int) gcudai_ld32(x##c + 4 * s));                                        \
    i##c = _mm512_dpbusd_epi32(i##c, w0, u);                                                       \
    j##c = _mm512_dpbusd_epi32(j##c, w1, u)
#define GCUDAI_VNNI_SCALE(c)                                                                       \
    f = _mm512_set1_ps(d##c[k / 32]);                                                              \
    a##c = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(i##c), f), s0, a##c);                  \
    b##c = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(j##c), f), s1, b##c);                  \
    f = _mm512_set1_ps(s##c##s[k / group]);                                                        \
    a##c = _mm512_fmadd_ps(m0, f, a##c);                                                           \
    b##c = _mm512_fmadd_ps(m1, f, b##c);                                                           \
    if (has_min) {                                                                                 \
        f = _mm512_set1_ps(r##c##s[k / group]);                                                    \
        a##c = _mm512_fmadd_ps(n0, f, a##c);                                                       \
        b##c = _mm512_fmadd_ps(n1, f, b##c);                                                       \
    }
#define GCUDAI_VNNI_COL(c)                                                                         \
    const int8_t * x##c = x[c].q;                                                                  \
    const float * d##c = x[c].d, * s##c##s = group == 32 ? x[c].s32 : x[c].s16;                    \
    const float * r##c##s = group == 32 ? x[c].r32 : x[c].r16;                                     \
    __m512 a##c = _mm512_loadu_ps(acc + 32 * c), b##c = _mm512_loadu_ps(acc + 32 * c + 16)
#define GCUDAI_VNNI_END(c)                                                                         \
    _mm512_storeu_ps(acc + 32 * c, a##c);                                                          \
    _mm512_storeu_ps(acc + 32 * c + 16, b##c)

// acc[4 columns][32 rows] += panel * x
GCUDAI_TARGET_AVX512VNNI static GCUDAI_INLINE void gcudai_vnni_q_panel(enum gcudai_q_kind kind, const struct gcudai_q_panel * p,
                                                                       const struct gcudai_q_col * x, int64_t n, float * acc) {
    const int group = gcudai_q_group(kind);
    const bool has_min = gcudai_q_has_min(kind);
    const uint8_t * w = p->codes;
    const float * sc = p->sc, * mn = p->mn, * mean = p->mean;
    GCUDAI_VNNI_COL(0);
    GCUDAI_VNNI_COL(1);
    GCUDAI_VNNI_COL(2);
    GCUDAI_VNNI_COL(3);
    for (int64_t k = 0; k < n; k += group, w += 32 * group, sc += 32, mn += 32, mean += 32) {
        __m512i i0 = _mm512_setzero_si512(), i1 = i0, i2 = i0, i3 = i0, j0 = i0, j1 = i0, j2 = i0, j3 = i0, u;
        for (int s = 0; s < group / 4; ++s) {
            const __m512i w0 = _mm512_loadu_si512((const void *) (w + 128 * s)), w1 = _mm512_loadu_si512((const void *) (w + 128 * s + 64));
            GCUDAI_VNNI_STEP(0);
            GCUDAI_VNNI_STEP(1);
            GCUDAI_VNNI_STEP(2);
            GCUDAI_VNNI_STEP(3);
        }
        const __m512 s0 = _mm512_loadu_ps(sc), s1 = _mm512_loadu_ps(sc + 16), m0 = _mm512_loadu_ps(mn), m1 = _mm512_loadu_ps(mn + 16);
        const __m512 n0 = has_min ? _mm512_loadu_ps(mean) : m0, n1 = has_min ? _mm512_loadu_ps(mean + 16) : m1;
        __m512 f;
        GCUDAI_VNNI_SCALE(0)
        GCUDAI_VNNI_SCALE(1)
        GCUDAI_VNNI_SCALE(2)
        GCUDAI_VNNI_SCALE(3)
        x0 += group;
        x1 += group;
        x2 += group;
        x3 += group;
    }
    GCUDAI_VNNI_END(0);
    GCUDAI_VNNI_END(1);
    GCUDAI_VNNI_END(2);
    GCUDAI_VNNI_END(3);
}
#undef GCUDAI_VNNI_STEP
#undef GCUDAI_VNNI_SCALE
#undef GCUDAI_VNNI_COL
#undef GCUDAI_VNNI_END

GCUDAI_TARGET_AVX512VNNI static void gcudai_q_panel_vnni(enum gcudai_q_kind kind, const struct gcudai_q_panel * p,
                                                         const struct gcudai_q_col * x, int64_t n, float * acc) {
    switch (kind) {
        case GCUDAI_Q_M32: gcudai_vnni_q_panel(GCUDAI_Q_M32, p, x, n, acc); break;
        case GCUDAI_Q_M16: gcudai_vnni_q_panel(GCUDAI_Q_M16, p, x, n, acc); break;
        case GCUDAI_Q_U16:
        case GCUDAI_Q_S16: gcudai_vnni_q_panel(GCUDAI_Q_U16, p, x, n, acc); break;
        default: gcudai_vnni_q_panel(GCUDAI_Q_U32, p, x, n, acc); break;
    }
}

GCUDAI_TARGET_AVX2 static GCUDAI_INLINE __m256 gcudai_avx2_load8(enum gcuda_type type, const char * p, int64_t i) {
    if (type == GCUDA_TYPE_F32) { return _mm256_loadu_ps((const float *) (const void *) (p + 4 * i)); }
    const __m128i h = _mm_loadu_si128((const __m128i *) (const void *) (p + 2 * i));
    if (type == GCUDA_TYPE_F16) { return _mm256_cvtph_ps(h); }
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

// the last n < 8 elements, zeros behind them
GCUDAI_TARGET_AVX2 static GCUDAI_INLINE __m256 gcudai_avx2_load_tail(enum gcuda_type type, const char * p, int64_t i, int64_t n) {
    const size_t size = type == GCUDA_TYPE_F32 ? 4 : 2;
    char buf[32];
    memset(buf, 0, sizeof(buf));
    memcpy(buf, p + (size_t) i * size, (size_t) n * size);
    return gcudai_avx2_load8(type, buf, 0);
}

GCUDAI_TARGET_AVX2 static GCUDAI_INLINE __m256 gcudai_avx2_x(const char * x, int64_t i) {
    return gcudai_avx2_load8(GCUDA_TYPE_F32, x, i);
}

GCUDAI_TARGET_AVX2 static GCUDAI_INLINE float gcudai_avx2_dot1(enum gcuda_type type, const char * w, const char * x, int64_t n) {
    __m256 a = _mm256_setzero_ps(), b = a, c = a, d = a;
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        a = _mm256_fmadd_ps(gcudai_avx2_load8(type, w, i), gcudai_avx2_x(x, i), a);
        b = _mm256_fmadd_ps(gcudai_avx2_load8(type, w, i + 8), gcudai_avx2_x(x, i + 8), b);
        c = _mm256_fmadd_ps(gcudai_avx2_load8(type, w, i + 16), gcudai_avx2_x(x, i + 16), c);
        d = _mm256_fmadd_ps(gcudai_avx2_load8(type, w, i + 24), gcudai_avx2_x(x, i + 24), d);
    }
    for (; i + 8 <= n; i += 8) { a = _mm256_fmadd_ps(gcudai_avx2_load8(type, w, i), gcudai_avx2_x(x, i), a); }
    if (i < n) {
        const __m256 u = gcudai_avx2_load_tail(GCUDA_TYPE_F32, x, i, n - i);
        b = _mm256_fmadd_ps(gcudai_avx2_load_tail(type, w, i, n - i), u, b);
    }
    return gcudai_avx2_sum(_mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d)));
}

GCUDAI_TARGET_AVX2 static GCUDAI_INLINE void gcudai_avx2_dot4(enum gcuda_type type, const char * w, const char * const * x, int64_t n, float * out) {
    const char * x0 = x[0], * x1 = x[1], * x2 = x[2], * x3 = x[3];
    __m256 a0 = _mm256_setzero_ps(), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m256 v = gcudai_avx2_load8(type, w, i), u = gcudai_avx2_load8(type, w, i + 8);
        a0 = _mm256_fmadd_ps(v, gcudai_avx2_x(x0, i), a0);
        a1 = _mm256_fmadd_ps(v, gcudai_avx2_x(x1, i), a1);
        a2 = _mm256_fmadd_ps(v, gcudai_avx2_x(x2, i), a2);
        a3 = _mm256_fmadd_ps(v, gcudai_avx2_x(x3, i), a3);
        b0 = _mm256_fmadd_ps(u, gcudai_avx2_x(x0, i + 8), b0);
        b1 = _mm256_fmadd_ps(u, gcudai_avx2_x(x1, i + 8), b1);
        b2 = _mm256_fmadd_ps(u, gcudai_avx2_x(x2, i + 8), b2);
        b3 = _mm256_fmadd_ps(u, gcudai_avx2_x(x3, i + 8), b3);
    }
    for (; i < n; i += 8) {
        const int64_t m = n - i < 8 ? n - i : 8;
        const __m256 v = gcudai_avx2_load_tail(type, w, i, m);
        a0 = _mm256_fmadd_ps(v, gcudai_avx2_load_tail(GCUDA_TYPE_F32, x0, i, m), a0);
        a1 = _mm256_fmadd_ps(v, gcudai_avx2_load_tail(GCUDA_TYPE_F32, x1, i, m), a1);
        a2 = _mm256_fmadd_ps(v, gcudai_avx2_load_tail(GCUDA_TYPE_F32, x2, i, m), a2);
        a3 = _mm256_fmadd_ps(v, gcudai_avx2_load_tail(GCUDA_TYPE_F32, x3, i, m), a3);
    }
    out[0] = gcudai_avx2_sum(_mm256_add_ps(a0, b0));
    out[1] = gcudai_avx2_sum(_mm256_add_ps(a1, b1));
    out[2] = gcudai_avx2_sum(_mm256_add_ps(a2, b2));
    out[3] = gcudai_avx2_sum(_mm256_add_ps(a3, b3));
}

#define GCUDAI_DOT_AVX2(name, type)                                                                                             \
    GCUDAI_TARGET_AVX2 static void name(const char * w, const char * const * x, int n_cols, int64_t n, float * out) {          \
        int c = 0;                                                                                                              \
        for (; c + 4 <= n_cols; c += 4) { gcudai_avx2_dot4(type, w, x + c, n, out + c); }                                       \
        for (; c < n_cols; ++c) { out[c] = gcudai_avx2_dot1(type, w, x[c], n); }                                                \
    }
GCUDAI_DOT_AVX2(gcudai_dot_f32_avx2, GCUDA_TYPE_F32)
GCUDAI_DOT_AVX2(gcudai_dot_f16_avx2, GCUDA_TYPE_F16)
GCUDAI_DOT_AVX2(gcudai_dot_bf16_avx2, GCUDA_TYPE_BF16)
#undef GCUDAI_DOT_AVX2

// 8 rows x 8 elements to 8 vectors of one element of every row
GCUDAI_TARGET_AVX2 static GCUDAI_INLINE void gcudai_avx2_transpose(enum gcuda_type type, const char * w, size_t nb, int64_t k, int mr, float * out) {
    const __m256 r0 = gcudai_avx2_load8(type, w, k), r1 = gcudai_avx2_load8(type, w + nb, k);
    const __m256 r2 = gcudai_avx2_load8(type, w + 2 * nb, k), r3 = gcudai_avx2_load8(type, w + 3 * nb, k);
    const __m256 r4 = gcudai_avx2_load8(type, w + 4 * nb, k), r5 = gcudai_avx2_load8(type, w + 5 * nb, k);
    const __m256 r6 = gcudai_avx2_load8(type, w + 6 * nb, k), r7 = gcudai_avx2_load8(type, w + 7 * nb, k);
    const __m256 t0 = _mm256_unpacklo_ps(r0, r1), t1 = _mm256_unpackhi_ps(r0, r1);
    const __m256 t2 = _mm256_unpacklo_ps(r2, r3), t3 = _mm256_unpackhi_ps(r2, r3);
    const __m256 t4 = _mm256_unpacklo_ps(r4, r5), t5 = _mm256_unpackhi_ps(r4, r5);
    const __m256 t6 = _mm256_unpacklo_ps(r6, r7), t7 = _mm256_unpackhi_ps(r6, r7);
    const __m256 s0 = _mm256_shuffle_ps(t0, t2, 0x44), s1 = _mm256_shuffle_ps(t0, t2, 0xee);
    const __m256 s2 = _mm256_shuffle_ps(t1, t3, 0x44), s3 = _mm256_shuffle_ps(t1, t3, 0xee);
    const __m256 s4 = _mm256_shuffle_ps(t4, t6, 0x44), s5 = _mm256_shuffle_ps(t4, t6, 0xee);
    const __m256 s6 = _mm256_shuffle_ps(t5, t7, 0x44), s7 = _mm256_shuffle_ps(t5, t7, 0xee);
    out += k * mr;
    _mm256_storeu_ps(out, _mm256_permute2f128_ps(s0, s4, 0x20));
    _mm256_storeu_ps(out + mr, _mm256_permute2f128_ps(s1, s5, 0x20));
    _mm256_storeu_ps(out + 2 * mr, _mm256_permute2f128_ps(s2, s6, 0x20));
    _mm256_storeu_ps(out + 3 * mr, _mm256_permute2f128_ps(s3, s7, 0x20));
    _mm256_storeu_ps(out + 4 * mr, _mm256_permute2f128_ps(s0, s4, 0x31));
    _mm256_storeu_ps(out + 5 * mr, _mm256_permute2f128_ps(s1, s5, 0x31));
    _mm256_storeu_ps(out + 6 * mr, _mm256_permute2f128_ps(s2, s6, 0x31));
    _mm256_storeu_ps(out + 7 * mr, _mm256_permute2f128_ps(s3, s7, 0x31));
}

GCUDAI_TARGET_AVX2 static GCUDAI_INLINE void gcudai_avx2_pack(enum gcuda_type type, const char * w, size_t nb, int n_rows, int64_t kc, int mr, float * out) {
    const int64_t k8 = kc / 8 * 8;
    int r = 0;
    for (; r + 8 <= n_rows; r += 8) {
        for (int64_t k = 0; k < k8; k += 8) { gcudai_avx2_transpose(type, w + (size_t) r * nb, nb, k, mr, out + r); }
    }
    gcudai_pack_part(type, w, nb, 0, r, k8, kc, mr, out);
    gcudai_pack_part(type, w, nb, r, n_rows, 0, kc, mr, out);
}

GCUDAI_TARGET_AVX2 static void gcudai_pack_avx2(enum gcuda_type type, const char * w, size_t nb, int n_rows, int64_t kc, int mr, float * out) {
    switch (type) {
        case GCUDA_TYPE_F32: gcudai_avx2_pack(GCUDA_TYPE_F32, w, nb, n_rows, kc, mr, out); break;
        case GCUDA_TYPE_F16: gcudai_avx2_pack(GCUDA_TYPE_F16, w, nb, n_rows, kc, mr, out); break;
        default: gcudai_avx2_pack(GCUDA_TYPE_BF16, w, nb, n_rows, kc, mr, out); break;
    }
}

GCUDAI_TARGET_AVX2 static GCUDAI_INLINE void gcudai_avx2_out(float * c, bool add, __m256 v) {
    _mm256_storeu_ps(c, add ? _mm256_add_ps(v, _mm256_loadu_ps(c)) : v);
}

// one element of four columns times 24 rows
#define GCUDAI_GEMM_AVX2_COL(j)              \
    v = _mm256_broadcast_ss(b + 4 * k + j);  \
    x##j = _mm256_fmadd_ps(a0, v, x##j);     \
    y##j = _mm256_fmadd_ps(a1, v, y##j);     \
    z##j = _mm256_fmadd_ps(a2, v, z##j)
#define GCUDAI_GEMM_AVX2_OUT(j)                       \
    gcudai_avx2_out(c + j * ldc, add, x##j);          \
    gcudai_avx2_out(c + j * ldc + 8, add, y##j);      \
    gcudai_avx2_out(c + j * ldc + 16, add, z##j)

GCUDAI_TARGET_AVX2 static void gcudai_gemm_avx2(int64_t kc, const float * a, const float * b, int64_t b_step, int n_quads, float * c, int64_t ldc, bool add) {
    for (int q = 0; q < n_quads; ++q, b += b_step, c += 4 * ldc) {
        const __m256 zero = _mm256_setzero_ps();
        __m256 x0 = zero, x1 = zero, x2 = zero, x3 = zero, y0 = zero, y1 = zero, y2 = zero, y3 = zero;
        __m256 z0 = zero, z1 = zero, z2 = zero, z3 = zero, v;
        for (int64_t k = 0; k < kc; ++k) {
            const __m256 a0 = _mm256_loadu_ps(a + 24 * k), a1 = _mm256_loadu_ps(a + 24 * k + 8), a2 = _mm256_loadu_ps(a + 24 * k + 16);
            GCUDAI_GEMM_AVX2_COL(0);
            GCUDAI_GEMM_AVX2_COL(1);
            GCUDAI_GEMM_AVX2_COL(2);
            GCUDAI_GEMM_AVX2_COL(3);
        }
        GCUDAI_GEMM_AVX2_OUT(0);
        GCUDAI_GEMM_AVX2_OUT(1);
        GCUDAI_GEMM_AVX2_OUT(2);
        GCUDAI_GEMM_AVX2_OUT(3);
    }
}
#undef GCUDAI_GEMM_AVX2_COL
#undef GCUDAI_GEMM_AVX2_OUT

// 32 rows x 4, 8 or 12 columns
#define GCUDAI_GEMM_AVX512_VARS(p) __m512 p##0 = zero, p##1 = zero, p##2 = zero, p##3 = zero, p##4 = zero, p##5 = zero, p##6 = zero, p##7 = zero
#define GCUDAI_GEMM_AVX512_COL(p, x, y, j)            \
    v = _mm512_set1_ps((p)[4 * k + (j) % 4]);         \
    x = _mm512_fmadd_ps(a0, v, x);                    \
    y = _mm512_fmadd_ps(a1, v, y)
#define GCUDAI_GEMM_AVX512_QUAD(p, s)                 \
    GCUDAI_GEMM_AVX512_COL(p, s##0, s##4, 0);         \
    GCUDAI_GEMM_AVX512_COL(p, s##1, s##5, 1);         \
    GCUDAI_GEMM_AVX512_COL(p, s##2, s##6, 2);         \
    GCUDAI_GEMM_AVX512_COL(p, s##3, s##7, 3)
#define GCUDAI_GEMM_AVX512_OUT(s, q)                                                                 \
    gcudai_avx512_out(c + (4 * q) * ldc, add, s##0, s##4);                                           \
    gcudai_avx512_out(c + (4 * q + 1) * ldc, add, s##1, s##5);                                       \
    gcudai_avx512_out(c + (4 * q + 2) * ldc, add, s##2, s##6);                                       \
    gcudai_avx512_out(c + (4 * q + 3) * ldc, add, s##3, s##7)

GCUDAI_TARGET_AVX512 static GCUDAI_INLINE void gcudai_avx512_out(float * c, bool add, __m512 v, __m512 w) {
    _mm512_storeu_ps(c, add ? _mm512_add_ps(v, _mm512_loadu_ps(c)) : v);
    _mm512_storeu_ps(c + 16, add ? _mm512_add_ps(w, _mm512_loadu_ps(c + 16)) : w);
}

GCUDAI_TARGET_AVX512 static void gcudai_gemm_avx512_12(int64_t kc, const float * a, const float * b, int64_t b_step, float * c, int64_t ldc, bool add) {
    const float * b1 = b + b_step, * b2 = b1 + b_step;
    const __m512 zero = _mm512_setzero_ps();
    GCUDAI_GEMM_AVX512_VARS(s);
    GCUDAI_GEMM_AVX512_VARS(t);
    GCUDAI_GEMM_AVX512_VARS(u);
    __m512 v;
    for (int64_t k = 0; k < kc; ++k) {
        const __m512 a0 = _mm512_loadu_ps(a + 32 * k), a1 = _mm512_loadu_ps(a + 32 * k + 16);
        GCUDAI_GEMM_AVX512_QUAD(b, s);
        GCUDAI_GEMM_AVX512_QUAD(b1, t);
        GCUDAI_GEMM_AVX512_QUAD(b2, u);
    }
    GCUDAI_GEMM_AVX512_OUT(s, 0);
    GCUDAI_GEMM_AVX512_OUT(t, 1);
    GCUDAI_GEMM_AVX512_OUT(u, 2);
}

GCUDAI_TARGET_AVX512 static void gcudai_gemm_avx512_4(int64_t kc, const float * a, const float * b, float * c, int64_t ldc, bool add) {
    const __m512 zero = _mm512_setzero_ps();
    GCUDAI_GEMM_AVX512_VARS(s);
    __m512 v;
    for (int64_t k = 0; k < kc; ++k) {
        const __m512 a0 = _mm512_loadu_ps(a + 32 * k), a1 = _mm512_loadu_ps(a + 32 * k + 16);
        GCUDAI_GEMM_AVX512_QUAD(b, s);
    }
    GCUDAI_GEMM_AVX512_OUT(s, 0);
}

GCUDAI_TARGET_AVX512 static void gcudai_gemm_avx512(int64_t kc, const float * a, const float * b, int64_t b_step, int n_quads, float * c, int64_t ldc, bool add) {
    if (n_quads == 3) {
        gcudai_gemm_avx512_12(kc, a, b, b_step, c, ldc, add);
        return;
    }
    for (int q = 0; q < n_quads; ++q) { gcudai_gemm_avx512_4(kc, a, b + q * b_step, c + 4 * q * ldc, ldc, add); }
}
#undef GCUDAI_GEMM_AVX512_VARS
#undef GCUDAI_GEMM_AVX512_COL
#undef GCUDAI_GEMM_AVX512_QUAD
#undef GCUDAI_GEMM_AVX512_OUT

GCUDAI_SIMD_END
#endif // GCUDAI_HAVE_X86_SIMD

#if GCUDAI_HAVE_NEON

// ---- NEON ----

static void gcudai_codes_q4_0_neon(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    const uint8x16_t low = vdupq_n_u8(15);
    for (int64_t b = 0; b < n; ++b, w += 18, q += 32) {
        const uint8x16_t v = vld1q_u8(w + 2);
        sc[b] = gcudai_ldh(w);
        mn[b] = -8.0f * sc[b];
        vst1q_u8(q, vandq_u8(v, low));
        vst1q_u8(q + 16, vshrq_n_u8(v, 4));
    }
}

static void gcudai_codes_q4_k_neon(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn) {
    const uint8x16_t low = vdupq_n_u8(15);
    for (int64_t b = 0; b < n; ++b, w += 144, q += 256, sc += 8, mn += 8) {
        gcudai_q4_k_floats(w, sc, mn);
        for (int h = 0; h < 8; ++h) {
            const uint8x16_t v = vld1q_u8(w + 16 + 16 * h);
            uint8_t * out = q + 64 * (h / 2) + 16 * (h % 2);
            vst1q_u8(out, vandq_u8(v, low));
            vst1q_u8(out + 32, vshrq_n_u8(v, 4));
        }
    }
}

// Products of 16 codes and activations as four sums. Codes below 128 are the same signed and unsigned; a pair of
// products stays within 16 bits: 2 * 128 * 127.
static GCUDAI_INLINE int32x4_t gcudai_neon_q_sums(const uint8_t * q, const int8_t * u) {
    const int8x16_t w = vreinterpretq_s8_u8(vld1q_u8(q)), x = vld1q_s8(u);
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(vdupq_n_s32(0), w, x);
#else
    const int16x8_t p = vmull_s8(vget_low_s8(w), vget_low_s8(x));
    return vpaddlq_s16(vmlal_s8(p, vget_high_s8(w), vget_high_s8(x)));
#endif
}

static GCUDAI_INLINE float gcudai_neon_q_dot1(enum gcudai_q_kind kind, const uint8_t * q, const float * sc, const float * mn, float center,
                                              const struct gcudai_q_col * x, int64_t n) {
    const bool per16 = gcudai_q_group(kind) == 16;
    const float * s = per16 ? x->s16 : x->s32, * r = per16 ? x->r16 : x->r32;
    const int64_t n_scales = n / gcudai_q_group(kind);
    float32x4_t a = vdupq_n_f32(0.0f), b = a;
    for (int64_t g = 0; g < n / 32; ++g, q += 32) {
        const int32x4_t p0 = gcudai_neon_q_sums(q, x->q + 32 * g), p1 = gcudai_neon_q_sums(q + 16, x->q + 32 * g + 16);
        if (per16) {
            a = vfmaq_n_f32(a, vcvtq_f32_s32(p0), sc[2 * g] * x->d[g]);
            b = vfmaq_n_f32(b, vcvtq_f32_s32(p1), sc[2 * g + 1] * x->d[g]);
        } else {
            a = vfmaq_n_f32(a, vcvtq_f32_s32(vaddq_s32(p0, p1)), sc[g] * x->d[g]);
        }
    }
    for (int64_t g = 0; !gcudai_q_is_signed(kind) && g < n_scales; g += 4) {
        const float32x4_t m = vld1q_f32(mn + g);
        b = vfmaq_f32(b, m, vld1q_f32(s + g));
        if (gcudai_q_has_min(kind)) { a = vfmaq_f32(a, vfmaq_n_f32(m, vld1q_f32(sc + g), center), vld1q_f32(r + g)); }
    }
    return vaddvq_f32(vaddq_f32(a, b));
}

#define GCUDAI_Q_DOT_NEON(name, kind)                                                                                  \
    static void name(const uint8_t * q, const float * sc, const float * mn, float center,                              \
                     const struct gcudai_q_col * x, int n_cols, int64_t n, float * out) {                              \
        for (int c = 0; c < n_cols; ++c) { out[c] += gcudai_neon_q_dot1(kind, q, sc, mn, center, x + c, n); }          \
    }
GCUDAI_Q_DOT_NEON(gcudai_q_dot_u32_neon, GCUDAI_Q_U32)
GCUDAI_Q_DOT_NEON(gcudai_q_dot_u16_neon, GCUDAI_Q_U16)
GCUDAI_Q_DOT_NEON(gcudai_q_dot_m32_neon, GCUDAI_Q_M32)
GCUDAI_Q_DOT_NEON(gcudai_q_dot_m16_neon, GCUDAI_Q_M16)
GCUDAI_Q_DOT_NEON(gcudai_q_dot_s32_neon, GCUDAI_Q_S32)
GCUDAI_Q_DOT_NEON(gcudai_q_dot_s16_neon, GCUDAI_Q_S16)
#undef GCUDAI_Q_DOT_NEON

static GCUDAI_INLINE float32x4_t gcudai_neon_load4(enum gcuda_type type, const char * p, int64_t i) {
    uint16x4_t h;
    float32x4_t f;
    if (type == GCUDA_TYPE_F32) {
        memcpy(&f, p + 4 * i, sizeof(f)); // rows may lie at any address
        return f;
    }
    memcpy(&h, p + 2 * i, sizeof(h));
    if (type == GCUDA_TYPE_F16) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }
    return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(h), 16));
}

static GCUDAI_INLINE float gcudai_neon_dot1(enum gcuda_type type, const char * w, const char * u, int64_t n) {
    float32x4_t a = vdupq_n_f32(0.0f), b = a, c = a, d = a;
    int64_t i = 0;
    float tail = 0.0f;
    for (; i + 16 <= n; i += 16) {
        a = vfmaq_f32(a, gcudai_neon_load4(type, w, i), gcudai_neon_load4(GCUDA_TYPE_F32, u, i));
        b = vfmaq_f32(b, gcudai_neon_load4(type, w, i + 4), gcudai_neon_load4(GCUDA_TYPE_F32, u, i + 4));
        c = vfmaq_f32(c, gcudai_neon_load4(type, w, i + 8), gcudai_neon_load4(GCUDA_TYPE_F32, u, i + 8));
        d = vfmaq_f32(d, gcudai_neon_load4(type, w, i + 12), gcudai_neon_load4(GCUDA_TYPE_F32, u, i + 12));
    }
    for (; i < n; ++i) { tail += gcudai_load1(type, w, i) * gcudai_load1(GCUDA_TYPE_F32, u, i); }
    return vaddvq_f32(vaddq_f32(vaddq_f32(a, b), vaddq_f32(c, d))) + tail;
}

static void gcudai_dot_f32_neon(const char * w, const char * const * x, int n_cols, int64_t n, float * out) {
    for (int c = 0; c < n_cols; ++c) { out[c] = gcudai_neon_dot1(GCUDA_TYPE_F32, w, x[c], n); }
}

static void gcudai_dot_f16_neon(const char * w, const char * const * x, int n_cols, int64_t n, float * out) {
    for (int c = 0; c < n_cols; ++c) { out[c] = gcudai_neon_dot1(GCUDA_TYPE_F16, w, x[c], n); }
}

static void gcudai_dot_bf16_neon(const char * w, const char * const * x, int n_cols, int64_t n, float * out) {
    for (int c = 0; c < n_cols; ++c) { out[c] = gcudai_neon_dot1(GCUDA_TYPE_BF16, w, x[c], n); }
}

// 16 rows x 4 columns
#define GCUDAI_GEMM_NEON_COL(j)               \
    x##j = vfmaq_laneq_f32(x##j, a0, v, j);   \
    y##j = vfmaq_laneq_f32(y##j, a1, v, j);   \
    z##j = vfmaq_laneq_f32(z##j, a2, v, j);   \
    w##j = vfmaq_laneq_f32(w##j, a3, v, j)
#define GCUDAI_GEMM_NEON_OUT(j)                    \
    gcudai_neon_out(c + j * ldc, add, x##j);       \
    gcudai_neon_out(c + j * ldc + 4, add, y##j);   \
    gcudai_neon_out(c + j * ldc + 8, add, z##j);   \
    gcudai_neon_out(c + j * ldc + 12, add, w##j)

static GCUDAI_INLINE void gcudai_neon_out(float * c, bool add, float32x4_t v) {
    vst1q_f32(c, add ? vaddq_f32(vld1q_f32(c), v) : v);
}

static void gcudai_gemm_neon(int64_t kc, const float * a, const float * b, int64_t b_step, int n_quads, float * c, int64_t ldc, bool add) {
    for (int q = 0; q < n_quads; ++q, b += b_step, c += 4 * ldc) {
        const float32x4_t zero = vdupq_n_f32(0.0f);
        float32x4_t x0 = zero, x1 = zero, x2 = zero, x3 = zero, y0 = zero, y1 = zero, y2 = zero, y3 = zero;
        float32x4_t z0 = zero, z1 = zero, z2 = zero, z3 = zero, w0 = zero, w1 = zero, w2 = zero, w3 = zero;
        for (int64_t k = 0; k < kc; ++k) {
            const float * p = a + 16 * k;
            const float32x4_t a0 = vld1q_f32(p), a1 = vld1q_f32(p + 4), a2 = vld1q_f32(p + 8), a3 = vld1q_f32(p + 12);
            const float32x4_t v = vld1q_f32(b + 4 * k);
            GCUDAI_GEMM_NEON_COL(0);
            GCUDAI_GEMM_NEON_COL(1);
            GCUDAI_GEMM_NEON_COL(2);
            GCUDAI_GEMM_NEON_COL(3);
        }
        GCUDAI_GEMM_NEON_OUT(0);
        GCUDAI_GEMM_NEON_OUT(1);
        GCUDAI_GEMM_NEON_OUT(2);
        GCUDAI_GEMM_NEON_OUT(3);
    }
}
#undef GCUDAI_GEMM_NEON_COL
#undef GCUDAI_GEMM_NEON_OUT

#endif // GCUDAI_HAVE_NEON

typedef void (*gcudai_codes_fn)(const uint8_t * w, int64_t n, uint8_t * q, float * sc, float * mn);

// What matrix products run on: one constant table per instruction set.
struct gcudai_simd {
    const char * name;
    int mr;    // rows of a GEMM panel
    int quads; // quads of columns its micro-kernel takes at most
    void (*gemm)(int64_t kc, const float * a, const float * b, int64_t b_step, int n_quads, float * c, int64_t ldc, bool add);
    void (*pack)(enum gcuda_type type, const char * w, size_t nb, int n_rows, int64_t kc, int mr, float * out);
    void (*dot[3])(const char * w, const char * const * x, int n_cols, int64_t n, float * out); // F32, F16, BF16
    void (*q_blocks)(const float * x, int n, const struct gcudai_q_col * c); // n times 32 values
    gcudai_q_dot_fn q_dot[GCUDAI_Q_KINDS];
    gcudai_codes_fn (*codes)(enum gcuda_type type);
    // NULL without a fast instruction for it
    void (*q_panel_rows)(enum gcudai_q_kind kind, const uint8_t * q, const float * sc, const float * mn, float center, int64_t n, int r,
                         struct gcudai_q_panel * p);
    void (*q_panel)(enum gcudai_q_kind kind, const struct gcudai_q_panel * p, const struct gcudai_q_col * x, int64_t n, float * acc);
};

// ---- choice of the instruction set ----

#define GCUDAI_Q_CODES(X)                                                                             \
    X(Q4_0, q4_0) X(Q4_1, q4_1) X(Q5_0, q5_0) X(Q5_1, q5_1) X(Q8_0, q8_0) X(Q2_K, q2_k) X(Q3_K, q3_k)  \
    X(Q4_K, q4_k) X(Q5_K, q5_k) X(Q6_K, q6_k) X(IQ4_NL, iq4_nl) X(IQ4_XS, iq4_xs) X(MXFP4, mxfp4)
#define GCUDAI_Q_CODES_GRID(X)                                                                        \
    X(IQ2_XXS, iq2_xxs) X(IQ2_XS, iq2_xs) X(IQ2_S, iq2_s) X(IQ3_XXS, iq3_xxs) X(IQ3_S, iq3_s) X(IQ1_S, iq1_s) X(IQ1_M, iq1_m)

static gcudai_codes_fn gcudai_codes_scalar(enum gcuda_type type) {
    switch (type) {
#define X(ID, name) case GCUDA_TYPE_##ID: return gcudai_codes_##name;
        GCUDAI_Q_CODES(X)
        GCUDAI_Q_CODES_GRID(X)
#undef X
        default: return NULL;
    }
}

// the 20 formats that weights come in; Q8_1 and Q8_K are for activations
static bool gcudai_is_weight(enum gcuda_type type) {
    return gcudai_codes_scalar(type) != NULL;
}

static enum gcudai_q_kind gcudai_q_kind_of(enum gcuda_type type) {
    switch (type) {
        case GCUDA_TYPE_Q4_0:
        case GCUDA_TYPE_Q5_0: return GCUDAI_Q_U32;
        case GCUDA_TYPE_Q3_K:
        case GCUDA_TYPE_Q6_K: return GCUDAI_Q_U16;
        case GCUDA_TYPE_Q4_1:
        case GCUDA_TYPE_Q5_1:
        case GCUDA_TYPE_Q4_K:
        case GCUDA_TYPE_Q5_K: return GCUDAI_Q_M32;
        case GCUDA_TYPE_Q2_K: return GCUDAI_Q_M16;
        case GCUDA_TYPE_IQ2_XS:
        case GCUDA_TYPE_IQ2_S:
        case GCUDA_TYPE_IQ1_M: return GCUDAI_Q_S16;
        default: return GCUDAI_Q_S32;
    }
}

// the mean code of the formats with a stored minimum
static float gcudai_q_center(enum gcuda_type type) {
    return type == GCUDA_TYPE_Q2_K ? 1.5f : type == GCUDA_TYPE_Q5_1 || type == GCUDA_TYPE_Q5_K ? 15.5f : 7.5f;
}

static const struct gcudai_simd gcudai_simd_scalar = {
    "scalar", 8, 1, gcudai_gemm_scalar, gcudai_pack_scalar,
    { gcudai_dot_f32_scalar, gcudai_dot_f16_scalar, gcudai_dot_bf16_scalar }, gcudai_q_blocks_scalar,
    { gcudai_q_dot_u32_scalar, gcudai_q_dot_u16_scalar, gcudai_q_dot_m32_scalar, gcudai_q_dot_m16_scalar, gcudai_q_dot_s32_scalar,
      gcudai_q_dot_s16_scalar },
    gcudai_codes_scalar, NULL, NULL
};

#if GCUDAI_HAVE_X86_SIMD
static gcudai_codes_fn gcudai_codes_avx2(enum gcuda_type type) {
    switch (type) {
#define X(ID, name) case GCUDA_TYPE_##ID: return gcudai_codes_##name##_avx2;
        GCUDAI_Q_CODES(X)
#undef X
        default: return gcudai_codes_scalar(type);
    }
}

static const struct gcudai_simd gcudai_simd_avx2 = {
    "avx2", 24, 3, gcudai_gemm_avx2, gcudai_pack_avx2,
    { gcudai_dot_f32_avx2, gcudai_dot_f16_avx2, gcudai_dot_bf16_avx2 }, gcudai_q_blocks_avx2,
    { gcudai_q_dot_u32_avx2, gcudai_q_dot_u16_avx2, gcudai_q_dot_m32_avx2, gcudai_q_dot_m16_avx2, gcudai_q_dot_s32_avx2,
      gcudai_q_dot_s16_avx2 },
    gcudai_codes_avx2, NULL, NULL
};

static const struct gcudai_simd gcudai_simd_avx512 = {
    "avx512", 32, 3, gcudai_gemm_avx512, gcudai_pack_avx2,
    { gcudai_dot_f32_avx2, gcudai_dot_f16_avx2, gcudai_dot_bf16_avx2 }, gcudai_q_blocks_avx2,
    { gcudai_q_dot_u32_avx2, gcudai_q_dot_u16_avx2, gcudai_q_dot_m32_avx2, gcudai_q_dot_m16_avx2, gcudai_q_dot_s32_avx2,
      gcudai_q_dot_s16_avx2 },
    gcudai_codes_avx2, NULL, NULL
};

static const struct gcudai_simd gcudai_simd_vnni = {
    "avx512vnni", 32, 3, gcudai_gemm_avx512, gcudai_pack_avx2,
    { gcudai_dot_f32_avx2, gcudai_dot_f16_avx2, gcudai_dot_bf16_avx2 }, gcudai_q_blocks_avx2,
    { gcudai_q_dot_u32_vnni, gcudai_q_dot_u16_vnni, gcudai_q_dot_m32_vnni, gcudai_q_dot_m16_vnni, gcudai_q_dot_s32_vnni,
      gcudai_q_dot_s16_vnni },
    gcudai_codes_avx2, gcudai_q_panel_rows_vnni, gcudai_q_panel_vnni
};
#endif

#if GCUDAI_HAVE_NEON
static gcudai_codes_fn gcudai_codes_neon(enum gcuda_type type) {
    switch (type) {
        case GCUDA_TYPE_Q4_0: return gcudai_codes_q4_0_neon;
        case GCUDA_TYPE_Q4_K: return gcudai_codes_q4_k_neon;
        default: return gcudai_codes_scalar(type);
    }
}

static const struct gcudai_simd gcudai_simd_neon = {
    "neon", 16, 3, gcudai_gemm_neon, gcudai_pack_scalar,
    { gcudai_dot_f32_neon, gcudai_dot_f16_neon, gcudai_dot_bf16_neon }, gcudai_q_blocks_scalar,
    { gcudai_q_dot_u32_neon, gcudai_q_dot_u16_neon, gcudai_q_dot_m32_neon, gcudai_q_dot_m16_neon, gcudai_q_dot_s32_neon,
      gcudai_q_dot_s16_neon },
    gcudai_codes_neon, NULL, NULL
};
#endif

// NULL: not on this machine, or not in this build
static const struct gcudai_simd * gcudai_simd_of(enum gcuda_cpu_isa isa) {
#if GCUDAI_HAVE_X86_SIMD
    const bool avx2 = gcudai_cpu_has(GCUDAI_CPU_AVX2 | GCUDAI_CPU_FMA | GCUDAI_CPU_F16C);
    if (isa == GCUDA_CPU_ISA_AVX2 && avx2) { return &gcudai_simd_avx2; }
    if (isa == GCUDA_CPU_ISA_AVX512 && avx2 && gcudai_cpu_has(GCUDAI_CPU_AVX512)) { return &gcudai_simd_avx512; }
    if (isa == GCUDA_CPU_ISA_AVX512_VNNI && avx2 && gcudai_cpu_has(GCUDAI_CPU_AVX512 | GCUDAI_CPU_VNNI)) { return &gcudai_simd_vnni; }
#endif
#if GCUDAI_HAVE_NEON
    if (isa == GCUDA_CPU_ISA_NEON) { return &gcudai_simd_neon; }
#endif
    return isa == GCUDA_CPU_ISA_SCALAR ? &gcudai_simd_scalar : NULL;
}

static const char * gcudai_cpu_isa_name(enum gcuda_cpu_isa isa) {
    static const char * const names[] = { "auto", "scalar", "neon", "avx2", "avx512", "avx512vnni" };
    return (int) isa >= 0 && (int) isa < GCUDA_CPU_ISA_COUNT ? names[isa] : "invalid";
}

// What GCUDA_CPU_ISA asks for, if this machine has it; else the best there is.
static enum gcuda_cpu_isa gcudai_cpu_isa_default(void) {
    const char * wanted = gcudai_env("GCUDA_CPU_ISA");
    int best = GCUDA_CPU_ISA_COUNT - 1;
    for (int isa = GCUDA_CPU_ISA_SCALAR; wanted != NULL && isa < GCUDA_CPU_ISA_COUNT; ++isa) {
        if (strcmp(wanted, gcudai_cpu_isa_name((enum gcuda_cpu_isa) isa)) == 0) { best = isa; }
    }
    while (gcudai_simd_of((enum gcuda_cpu_isa) best) == NULL) { --best; }
    return (enum gcuda_cpu_isa) best;
}

static gcudai_atomic_i32 gcudai_cpu_isa; // 0: not looked for yet

enum gcuda_cpu_isa gcuda_cpu_get_isa(void) {
    int32_t isa = gcudai_atomic_load_i32(&gcudai_cpu_isa);
    if (isa == GCUDA_CPU_ISA_AUTO) {
        isa = (int32_t) gcudai_cpu_isa_default();
        gcudai_atomic_store_i32(&gcudai_cpu_isa, isa);
    }
    return (enum gcuda_cpu_isa) isa;
}

gcuda_status gcuda_cpu_set_isa(enum gcuda_cpu_isa isa) {
    if (isa != GCUDA_CPU_ISA_AUTO && gcudai_simd_of(isa) == NULL) {
        return gcudai_fail(GCUDA_STATUS_UNSUPPORTED, "cpu_set_isa: %s is not on this machine", gcudai_cpu_isa_name(isa));
    }
    gcudai_atomic_store_i32(&gcudai_cpu_isa, (int32_t) isa);
    return GCUDA_STATUS_SUCCESS;
}

static const struct gcudai_simd * gcudai_simd_now(void) {
    return gcudai_simd_of(gcuda_cpu_get_isa());
}

// c = a^T b for one matrix, b already packed into quads (all of K each).
struct gcudai_gemm {
    enum gcuda_type type;
    const char * a;
    size_t a_nb;  // bytes from one row of a to the next
    size_t a_nb0; // from one element to the next
    bool a_by_k;  // a row of a holds one k for all m (OUT_PROD); otherwise one m for all k
    const float * b;
    float * c;
    int64_t ldc; // floats
    int64_t m, n, k;
};

struct gcudai_gemm_local {
    float a[(GCUDAI_GEMM_MT_BLOCKS + GCUDAI_GEMM_MR) * GCUDAI_GEMM_KC]; // the packed tile: whole panels
    float rows[GCUDAI_GEMM_MR * GCUDAI_GEMM_KC];                        // dequantized weights
};

// n elements from number i on of a row, of a float or a block type; i and n are whole blocks
static void gcudai_load_any(enum gcuda_type type, const char * row, size_t nb0, int64_t i, int64_t n, float * out) {
    if (type == GCUDA_TYPE_F32) {
        for (int64_t j = 0; j < n; ++j) { memcpy(out + j, row + (size_t) (i + j) * nb0, sizeof(float)); }
    } else if (gcudai_is_float(type)) {
        gcudai_load(type, row + (size_t) i * nb0, nb0, n, out);
    } else {
        gcudai_to_float(type)(row + (size_t) (i / gcuda_blck_size(type)) * gcuda_type_size(type), out, n);
    }
}

static void gcudai_gemm_pack_by_k(const struct gcudai_simd * simd, const struct gcudai_gemm * g, int64_t m0, int64_t m1,
                                  int64_t k0, int64_t kc, float * out) {
    float row[GCUDAI_GEMM_MT_BLOCKS];
    for (int64_t k = 0; k < kc; ++k) {
        gcudai_load_any(g->type, g->a + (size_t) (k0 + k) * g->a_nb, g->a_nb0, m0, m1 - m0, row);
        for (int64_t r = 0; r < m1 - m0; r += simd->mr) {
            const int64_t n = GCUDAI_MIN(m1 - m0 - r, simd->mr);
            float * p = out + r * kc + k * simd->mr;
            memcpy(p, row + r, (size_t) n * sizeof(float));
            for (int64_t i = n; i < simd->mr; ++i) { p[i] = 0.0f; }
        }
    }
}

// rows [m0, m1), depth [k0, k0 + kc) of a as panels of mr rows, one after another
static void gcudai_gemm_pack(const struct gcudai_simd * simd, const struct gcudai_gemm * g, int64_t m0, int64_t m1,
                             int64_t k0, int64_t kc, struct gcudai_gemm_local * local) {
    float * out = local->a;
    if (g->a_by_k) {
        gcudai_gemm_pack_by_k(simd, g, m0, m1, k0, kc, out);
        return;
    }
    for (int64_t r = m0; r < m1; r += simd->mr, out += simd->mr * kc) {
        const int n = (int) GCUDAI_MIN(m1 - r, simd->mr);
        const char * w = g->a + (size_t) r * g->a_nb;
        if (n < simd->mr) { memset(out, 0, (size_t) (simd->mr * kc) * sizeof(float)); }
        if (gcudai_is_float(g->type)) {
            simd->pack(g->type, w + (size_t) k0 * gcuda_type_size(g->type), g->a_nb, n, kc, simd->mr, out);
            continue;
        }
        for (int i = 0; i < n; ++i) { gcudai_load_any(g->type, w + (size_t) i * g->a_nb, 0, k0, kc, local->rows + i * kc); }
        simd->pack(GCUDA_TYPE_F32, (const char *) local->rows, (size_t) kc * sizeof(float), n, kc, simd->mr, out);
    }
}

// A tile at the edge of c goes through a buffer of whole panels and quads.
static void gcudai_gemm_edge(const struct gcudai_simd * simd, int64_t kc, const float * a, const float * b, int64_t b_step,
                             int64_t n_rows, int64_t n_cols, float * c, int64_t ldc, bool add) {
    float tmp[4 * GCUDAI_GEMM_QUADS * GCUDAI_GEMM_MR];
    simd->gemm(kc, a, b, b_step, (int) (n_cols + 3) / 4, tmp, simd->mr, false);
    for (int64_t j = 0; j < n_cols; ++j) {
        for (int64_t r = 0; r < n_rows; ++r) {
            const float v = tmp[j * simd->mr + r];
            c[j * ldc + r] = add ? c[j * ldc + r] + v : v;
        }
    }
}

// rows [m0, m1) x columns [n0, n1) of c; n0 is a multiple of 4
static void gcudai_gemm_tile(const struct gcudai_simd * simd, const struct gcudai_gemm * g, int64_t m0, int64_t m1,
                             int64_t n0, int64_t n1, struct gcudai_gemm_local * local) {
    for (int64_t j = n0; g->k == 0 && j < n1; ++j) { memset(g->c + j * g->ldc + m0, 0, (size_t) (m1 - m0) * sizeof(float)); }
    for (int64_t k0 = 0; k0 < g->k; k0 += GCUDAI_GEMM_KC) {
        const int64_t kc = GCUDAI_MIN(g->k - k0, GCUDAI_GEMM_KC);
        gcudai_gemm_pack(simd, g, m0, m1, k0, kc, local);
        for (int64_t r = m0; r < m1; r += simd->mr) {
            const float * a = local->a + (r - m0) * kc;
            const int64_t n_rows = GCUDAI_MIN(m1 - r, simd->mr);
            for (int64_t j = n0; j < n1; j += 4 * simd->quads) {
                const int64_t n_cols = GCUDAI_MIN(n1 - j, 4 * simd->quads);
                const float * b = g->b + j * g->k + 4 * k0;
                float * c = g->c + j * g->ldc + r;
                if (n_rows == simd->mr && n_cols % 4 == 0) {
                    simd->gemm(kc, a, b, 4 * g->k, (int) n_cols / 4, c, g->ldc, k0 > 0);
                } else {
                    gcudai_gemm_edge(simd, kc, a, b, 4 * g->k, n_rows, n_cols, c, g->ldc, k0 > 0);
                }
            }
        }
    }
}

// ---- tiles of rows and columns, few columns or integer panels ----

#define GCUDAI_MM_COLS 256 // most columns of a tile

struct gcudai_mm_cols {
    int n;
    char * x[GCUDAI_MM_COLS]; // F32 rows, or columns packed by gcudai_q_pack_column
    float * y[GCUDAI_MM_COLS]; // results, one per row of the weights
};

// Rows [m0, m1) of one weight matrix.
struct gcudai_mm_rows {
    const struct gcudai_simd * simd;
    enum gcuda_type type;
    const char * w;
    size_t nb; // bytes from row to row
    int64_t m0, m1, k;
};

struct gcudai_dot_local {
    float w[GCUDAI_Q_CHUNK];
    float acc[GCUDAI_MM_COLS];
    const char * x[GCUDAI_MM_COLS];
};

struct gcudai_q_local {
    uint8_t codes[GCUDAI_Q_CHUNK];
    float sc[GCUDAI_Q_CHUNK / 16];
    float mn[GCUDAI_Q_CHUNK / 16];
    float acc[GCUDAI_MM_COLS];
    struct gcudai_q_col x[GCUDAI_MM_COLS];
};

struct gcudai_q_panel_local {
    struct gcudai_q_panel panel;
    uint8_t codes[4 * GCUDAI_Q_PANEL_K];
    float sc[4 * GCUDAI_Q_PANEL_K / 16];
    float mn[4 * GCUDAI_Q_PANEL_K / 16];
    float acc[GCUDAI_MM_COLS * GCUDAI_Q_PANEL_ROWS];
};

// Float weights, or block weights dequantized a piece at a time.
static void gcudai_mm_dot_tile(const struct gcudai_mm_rows * r, const struct gcudai_mm_cols * c, struct gcudai_dot_local * s) {
    const bool is_float = gcudai_is_float(r->type);
    const int kernel = r->type == GCUDA_TYPE_F16 ? 1 : r->type == GCUDA_TYPE_BF16 ? 2 : 0;
    for (int64_t m = r->m0; m < r->m1; ++m) {
        const char * row = r->w + (size_t) m * r->nb;
        for (int j = 0; j < c->n; ++j) { c->y[j][m] = 0.0f; }
        for (int64_t k0 = 0, n = 0; k0 < r->k; k0 += n) {
            n = is_float ? r->k : GCUDAI_MIN(r->k - k0, GCUDAI_Q_CHUNK);
            if (!is_float) { gcudai_load_any(r->type, row, 0, k0, n, s->w); }
            for (int j = 0; j < c->n; ++j) { s->x[j] = c->x[j] + (size_t) k0 * sizeof(float); }
            r->simd->dot[kernel](is_float ? row : (const char *) s->w, s->x, c->n, n, s->acc);
            for (int j = 0; j < c->n; ++j) { c->y[j][m] += s->acc[j]; }
        }
    }
}

// n elements from k0 on of one row: codes, scales and minima, padded with zero scales up to the returned length
static int64_t gcudai_q_expand(const struct gcudai_mm_rows * r, const char * row, int64_t k0, int64_t n, int group, uint8_t * q,
                               float * sc, float * mn) {
    const int64_t block = gcuda_blck_size(r->type), padded = gcudai_q_pad(n);
    const uint8_t * w = (const uint8_t *) row + (size_t) (k0 / block) * gcuda_type_size(r->type);
    r->simd->codes(r->type)(w, n / block, q, sc, mn);
    if (n < padded) {
        memset(q + n, 0, (size_t) (padded - n));
        memset(sc + n / group, 0, (size_t) ((padded - n) / group) * sizeof(float));
        memset(mn + n / group, 0, (size_t) ((padded - n) / group) * sizeof(float));
    }
    return padded;
}

static void gcudai_mm_q_dot_tile(const struct gcudai_mm_rows * r, const struct gcudai_mm_cols * c, struct gcudai_q_local * s) {
    const enum gcudai_q_kind kind = gcudai_q_kind_of(r->type);
    const int group = gcudai_q_group(kind);
    for (int64_t m = r->m0; m < r->m1; ++m) {
        memset(s->acc, 0, (size_t) c->n * sizeof(float));
        for (int64_t k0 = 0; k0 < r->k; k0 += GCUDAI_Q_CHUNK) {
            const int64_t n = GCUDAI_MIN(r->k - k0, GCUDAI_Q_CHUNK);
            const int64_t padded = gcudai_q_expand(r, r->w + (size_t) m * r->nb, k0, n, group, s->codes, s->sc, s->mn);
            for (int j = 0; j < c->n; ++j) { s->x[j] = gcudai_q_col_at(c->x[j], r->k, k0); }
            r->simd->q_dot[kind](s->codes, s->sc, s->mn, gcudai_q_center(r->type), s->x, c->n, padded, s->acc);
        }
        for (int j = 0; j < c->n; ++j) { c->y[j][m] = s->acc[j]; }
    }
}

// Four rows at a time into the panel; rows past m1 get zero scales.
static int64_t gcudai_q_fill_panel(const struct gcudai_mm_rows * r, int64_t k0, int64_t n, struct gcudai_q_panel_local * s) {
    const enum gcudai_q_kind kind = gcudai_q_kind_of(r->type);
    const int group = gcudai_q_group(kind);
    const int64_t padded = gcudai_q_pad(n), scales = padded / group;
    for (int i = 0; i < GCUDAI_Q_PANEL_ROWS; i += 4) {
        for (int j = 0; j < 4; ++j) {
            const int64_t m = r->m0 + i + j;
            if (m < r->m1) {
                gcudai_q_expand(r, r->w + (size_t) m * r->nb, k0, n, group, s->codes + j * padded, s->sc + j * scales, s->mn + j * scales);
            } else {
                memset(s->codes + j * padded, 0, (size_t) padded);
                memset(s->sc + j * scales, 0, (size_t) scales * sizeof(float));
                memset(s->mn + j * scales, 0, (size_t) scales * sizeof(float));
            }
        }
        r->simd->q_panel_rows(kind, s->codes, s->sc, s->mn, gcudai_q_center(r->type), padded, i, &s->panel);
    }
    return padded;
}

// at most GCUDAI_Q_PANEL_ROWS rows
static void gcudai_mm_q_panel_tile(const struct gcudai_mm_rows * r, const struct gcudai_mm_cols * c, struct gcudai_q_panel_local * s) {
    const enum gcudai_q_kind kind = gcudai_q_kind_of(r->type);
    memset(s->acc, 0, sizeof(s->acc));
    for (int64_t k0 = 0; k0 < r->k; k0 += GCUDAI_Q_PANEL_K) {
        const int64_t padded = gcudai_q_fill_panel(r, k0, GCUDAI_MIN(r->k - k0, GCUDAI_Q_PANEL_K), s);
        for (int j = 0; j < c->n; j += 4) {
            struct gcudai_q_col x[4];
            for (int i = 0; i < 4; ++i) { x[i] = gcudai_q_col_at(c->x[GCUDAI_MIN(j + i, c->n - 1)], r->k, k0); }
            r->simd->q_panel(kind, &s->panel, x, padded, s->acc + j * GCUDAI_Q_PANEL_ROWS);
        }
    }
    for (int j = 0; j < c->n; ++j) {
        memcpy(c->y[j] + r->m0, s->acc + j * GCUDAI_Q_PANEL_ROWS, (size_t) (r->m1 - r->m0) * sizeof(float));
    }
}

// ---- activations ----

// One row of k activations of a float or block type, quantized to out.
static void gcudai_q_pack_column(const struct gcudai_simd * simd, enum gcuda_type type, const char * row, size_t nb0, int64_t k, char * out) {
    float buf[GCUDAI_Q_PAD];
    for (int64_t k0 = 0; k0 < k; k0 += GCUDAI_Q_PAD) {
        const struct gcudai_q_col c = gcudai_q_col_at(out, k, k0);
        const int64_t n = GCUDAI_MIN(k - k0, GCUDAI_Q_PAD);
        gcudai_load_any(type, row, nb0, k0, n, buf);
        for (int64_t i = n; i < GCUDAI_Q_PAD; ++i) { buf[i] = 0.0f; }
        simd->q_blocks(buf, GCUDAI_Q_PAD / 32, &c);
    }
}

static void gcudai_f32_column(enum gcuda_type type, const char * row, size_t nb0, int64_t k, char * out) {
    float buf[GCUDAI_PIECE];
    for (int64_t i = 0; i < k; i += GCUDAI_PIECE) {
        const int64_t n = GCUDAI_MIN(k - i, GCUDAI_PIECE);
        gcudai_load_any(type, row, nb0, i, n, buf);
        memcpy(out + (size_t) i * sizeof(float), buf, (size_t) n * sizeof(float));
    }
}

// Four columns of k values, element strides nb_k, columns nb_col apart, as [k][4]; columns from n_cols on are zero.
static void gcudai_pack_quad(enum gcuda_type type, const char * x, size_t nb_k, size_t nb_col, int64_t n_cols, int64_t k, float * out) {
    float buf[4][GCUDAI_PIECE];
    memset(buf, 0, sizeof(buf));
    for (int64_t k0 = 0; k0 < k; k0 += GCUDAI_PIECE) {
        const int64_t n = GCUDAI_MIN(k - k0, GCUDAI_PIECE);
        for (int64_t j = 0; j < n_cols && j < 4; ++j) { gcudai_load_any(type, x + (size_t) j * nb_col, nb_k, k0, n, buf[j]); }
        for (int64_t i = 0; i < n; ++i, out += 4) {
            out[0] = buf[0][i];
            out[1] = buf[1][i];
            out[2] = buf[2][i];
            out[3] = buf[3][i];
        }
    }
}

// =====================================================================================================
// >>impl-ops   shared checks; then one >>op:NAME block each: constructor, check, args, CPU
// =====================================================================================================

union gcudai_args {
#define X(name) struct gcuda_##name##_args name;
    GCUDA_ARGS(X)
#undef X
};

// How the CPU splits a node. Zeroed before a work function fills it in.
#define GCUDAI_MAX_PHASES 3
struct gcudai_work {
    int n_phases; // 0 means 1; a barrier stands between phases
    int64_t n_items[GCUDAI_MAX_PHASES];   // independent pieces; no result depends on how they are grouped
    double item_cost[GCUDAI_MAX_PHASES];  // elementary steps of an item, roughly; below about 5 ms
    size_t shared_bytes, local_bytes;     // scratch for all threads across phases, and for each thread
};

struct gcudai_run; // one computation of a graph: abort flag, first bad index
struct gcudai_task {
    int64_t i0, i1; // items to do
    int phase;
    char * shared; // 64-byte aligned, uninitialised
    char * local;
    struct gcudai_run * run;
};

// Remembers an index out of range in a node's data; the smallest position of the first such node is reported.
GCUDAI_UNUSED static void gcudai_bad_index(const struct gcudai_task * t, int64_t position, int64_t value, int64_t limit);

// The registry row of an operation, as the rest of the library sees it.
struct gcudai_op_info {
    const char * id;   // "RMS_NORM"
    const char * name; // "rms_norm"
    int n_src, n_opt, flags;
    gcuda_status (*check)(const struct gcuda_tensor * y);
    void (*args)(const struct gcuda_tensor * y, union gcudai_args * args);
    void (*work)(const struct gcuda_tensor * y, struct gcudai_work * w);
    gcuda_status (*can)(const struct gcuda_tensor * y); // on the CPU
    void (*cpu)(const union gcudai_args * args, const struct gcudai_task * t);
};
static const struct gcudai_op_info * gcudai_op_row(enum gcuda_op op); // NULL for an invalid id

static const char * gcudai_op_lower(enum gcuda_op op) {
    const struct gcudai_op_info * info = gcudai_op_row(op);
    return info ? info->name : "invalid operation";
}

static void gcudai_append_tensor(struct gcudai_text * out, const char * role, const struct gcuda_tensor * t) {
    gcudai_append(out, "; %s", role);
    if (t->name[0] != '\0') {
        gcudai_append(out, " '%s'", t->name);
    }
    gcudai_append(out, " %s [%lld, %lld, %lld, %lld]", gcuda_type_name(t->type),
                  (long long) t->ne[0], (long long) t->ne[1], (long long) t->ne[2], (long long) t->ne[3]);
    if (gcuda_type_is_valid(t->type) && !gcuda_is_contiguous(t)) {
        gcudai_append(out, " strides [%llu, %llu, %llu, %llu]", (unsigned long long) t->nb[0], (unsigned long long) t->nb[1],
                      (unsigned long long) t->nb[2], (unsigned long long) t->nb[3]);
    }
}

// "rms_norm 'name': text; src0 'x' f32 [..]; ...; result f32 [..]"
static gcuda_status gcudai_node_fail_v(gcuda_status status, const struct gcuda_tensor * y, const char * fmt, va_list args) {
    char text[GCUDAI_MESSAGE_BYTES], problem[GCUDAI_MESSAGE_BYTES / 2];
    struct gcudai_text out = { text, sizeof(text), 0 };
    vsnprintf(problem, sizeof(problem), fmt, args);
    gcudai_append(&out, "%s", gcudai_op_lower(y->op));
    if (y->name[0] != '\0') {
        gcudai_append(&out, " '%s'", y->name);
    }
    gcudai_append(&out, ": %s", problem);
    for (int i = 0; i < GCUDA_MAX_SRC; ++i) {
        char role[16];
        snprintf(role, sizeof(role), "src%d", i);
        if (y->src[i] != NULL) {
            gcudai_append_tensor(&out, role, y->src[i]);
        }
    }
    gcudai_append_tensor(&out, "result", y);
    return gcuda_set_last_error(status, text);
}

GCUDAI_PRINTF(3, 4) static gcuda_status gcudai_node_fail(gcuda_status status, const struct gcuda_tensor * y, const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    status = gcudai_node_fail_v(status, y, fmt, args);
    va_end(args);
    return status;
}

// In a check: what must hold, else INVALID_ARGUMENT with op, names, types and shapes. In a `can`: use GCUDAI_CAN.
#define GCUDAI_WANT(y, cond, ...)                                                           \
    do {                                                                                    \
        if (!(cond)) {                                                                      \
            return gcudai_node_fail(GCUDA_STATUS_INVALID_ARGUMENT, (y), __VA_ARGS__);       \
        }                                                                                   \
    } while (0)
#define GCUDAI_CAN(y, cond, ...)                                                            \
    do {                                                                                    \
        if (!(cond)) {                                                                      \
            return gcudai_node_fail(GCUDA_STATUS_UNSUPPORTED, (y), __VA_ARGS__);            \
        }                                                                                   \
    } while (0)

GCUDAI_UNUSED static gcuda_status gcudai_want_shape(const struct gcuda_tensor * y, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    GCUDAI_WANT(y, y->ne[0] == ne0 && y->ne[1] == ne1 && y->ne[2] == ne2 && y->ne[3] == ne3, "result must be [%lld, %lld, %lld, %lld]",
                (long long) ne0, (long long) ne1, (long long) ne2, (long long) ne3);
    return GCUDA_STATUS_SUCCESS;
}

GCUDAI_UNUSED static gcuda_status gcudai_want_type(const struct gcuda_tensor * y, const struct gcuda_tensor * t, enum gcuda_type type) {
    GCUDAI_WANT(y, t->type == type, "type of '%s' is %s, want %s", t->name, gcuda_type_name(t->type), gcuda_type_name(type));
    return GCUDA_STATUS_SUCCESS;
}

GCUDAI_UNUSED static gcuda_status gcudai_want_float(const struct gcuda_tensor * y, const struct gcuda_tensor * t) {
    GCUDAI_WANT(y, gcudai_is_float(t->type), "type of '%s' is %s, want f32, f16 or bf16", t->name, gcuda_type_name(t->type));
    return GCUDA_STATUS_SUCCESS;
}

GCUDAI_UNUSED static gcuda_status gcudai_want_contiguous(const struct gcuda_tensor * y, const struct gcuda_tensor * t) {
    GCUDAI_WANT(y, gcuda_is_contiguous(t), "'%s' must be contiguous", t->name);
    return GCUDA_STATUS_SUCCESS;
}

GCUDAI_UNUSED static gcuda_status gcudai_want_rows(const struct gcuda_tensor * y, const struct gcuda_tensor * t) {
    GCUDAI_WANT(y, gcuda_is_contiguous_rows(t), "rows of '%s' must be packed, nb[0] is %llu bytes", t->name, (unsigned long long) t->nb[0]);
    return GCUDA_STATUS_SUCCESS;
}

// y has the shape of t.
GCUDAI_UNUSED static gcuda_status gcudai_want_like(const struct gcuda_tensor * y, const struct gcuda_tensor * t) {
    return gcudai_want_shape(y, t->ne[0], t->ne[1], t->ne[2], t->ne[3]);
}

// Sane type, shape and strides, and inside its owner's memory.
static gcuda_status gcudai_check_tensor(const struct gcuda_tensor * t) {
    size_t span = 0, end = 0;
    GCUDAI_TRY(gcudai_span(t, &span));
    if (t->view_src != NULL && span > 0) {
        if (t->view_src->view_src != NULL || !gcudai_add_size(t->view_offs, span, &end) || end > gcuda_nbytes(t->view_src)) {
            return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "view '%s' of %llu bytes at offset %llu does not fit into '%s' of %llu bytes", t->name,
                               (unsigned long long) span, (unsigned long long) t->view_offs, t->view_src->name, (unsigned long long) gcuda_nbytes(t->view_src));
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

// Everything about a node that no backend is needed for. Every backend calls it before its own rule.
static gcuda_status gcudai_check_node(const struct gcuda_tensor * y) {
    const struct gcudai_op_info * info = gcudai_op_row(y->op);
    if (info == NULL) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "'%s': operation %d does not exist", y->name, (int) y->op);
    }
    const gcuda_status st = gcudai_check_tensor(y);
    if (st != GCUDA_STATUS_SUCCESS) {
        return gcudai_node_fail(st, y, "%s", gcudai_message);
    }
    for (int i = 0; i < GCUDA_MAX_SRC; ++i) {
        if (y->src[i] == NULL) {
            GCUDAI_WANT(y, i >= info->n_src, "source %d is NULL", i);
        } else if (y->op != GCUDA_OP_NONE) {
            GCUDAI_WANT(y, i < info->n_src + info->n_opt, "%d sources at most", info->n_src + info->n_opt);
            GCUDAI_TRY(gcudai_check_tensor(y->src[i]));
        }
    }
    return y->op == GCUDA_OP_NONE ? GCUDA_STATUS_SUCCESS : info->check(y);
}

// ---- what constructors are made of ----

GCUDAI_PRINTF(3, 4) static struct gcuda_tensor * gcudai_op_error(struct gcuda_context * ctx, enum gcuda_op op, const char * fmt, ...) {
    char text[GCUDAI_MESSAGE_BYTES / 2];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    gcudai_latch(ctx, gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "%s: %s", gcudai_op_lower(op), text));
    return NULL;
}

// False when the constructor must return NULL: no context, or a required source missing or insane. A NULL source of
// a context that already holds an error passes through without a new message.
static bool gcudai_op_begin(struct gcuda_context * ctx, enum gcuda_op op, struct gcuda_tensor * const * src, int n) {
    const struct gcudai_op_info * info = gcudai_op_row(op);
    if (ctx == NULL) {
        gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "%s: context is NULL", info->name);
        return false;
    }
    for (int i = 0; i < n; ++i) {
        if (src[i] == NULL) {
            if (i < info->n_src) {
                if (ctx->error == GCUDA_STATUS_SUCCESS) {
                    gcudai_op_error(ctx, op, "source %d is NULL", i);
                }
                return false;
            }
        } else if (gcudai_check_tensor(src[i]) != GCUDA_STATUS_SUCCESS) {
            gcudai_op_error(ctx, op, "source %d: %s", i, gcudai_message);
            return false;
        }
    }
    return true;
}

static struct gcuda_tensor * gcudai_op_attach(struct gcuda_tensor * y, enum gcuda_op op, struct gcuda_tensor * const * src, int n) {
    if (y != NULL) {
        y->op = op;
        for (int i = 0; i < n; ++i) {
            y->src[i] = src[i];
        }
    }
    return y;
}

// After a result could not be made: says which operation wanted it, and of what. `before` is the context's error before.
static void gcudai_op_blame(struct gcuda_context * ctx, enum gcuda_op op, gcuda_status before, struct gcuda_tensor * const * src, int n) {
    char text[GCUDAI_MESSAGE_BYTES];
    struct gcudai_text out = { text, sizeof(text), 0 };
    const gcuda_status st = ctx->error;
    if (before != GCUDA_STATUS_SUCCESS) {
        return;
    }
    gcudai_append(&out, "%s: %s", gcudai_op_lower(op), gcudai_message);
    for (int i = 0; i < n; ++i) {
        char role[16];
        snprintf(role, sizeof(role), "src%d", i);
        if (src[i] != NULL) {
            gcudai_append_tensor(&out, role, src[i]);
        }
    }
    ctx->error = GCUDA_STATUS_SUCCESS;
    gcudai_latch(ctx, gcuda_set_last_error(st, text));
}

// A contiguous result with these sources. NULL, latched, when the shape is too large or the context is full.
static struct gcuda_tensor * gcudai_op_new(struct gcuda_context * ctx, enum gcuda_op op, enum gcuda_type type, const int64_t * ne, struct gcuda_tensor * const * src, int n) {
    const gcuda_status before = ctx->error;
    struct gcuda_tensor * y = gcudai_tensor_new(ctx, type, ne, NULL, 0);
    if (y == NULL) {
        gcudai_op_blame(ctx, op, before, src, n);
    }
    return gcudai_op_attach(y, op, src, n);
}

// A result that is a view of a, with its shape and strides.
static struct gcuda_tensor * gcudai_op_view(struct gcuda_context * ctx, enum gcuda_op op, struct gcuda_tensor * a, struct gcuda_tensor * const * src, int n) {
    struct gcuda_tensor * y = gcudai_view_like(ctx, a);
    return gcudai_op_attach(gcuda_format_name(y, "%s (view)", a->name), op, src, n);
}

GCUDAI_UNUSED static void gcudai_set_param_i32(struct gcuda_tensor * y, int slot, int32_t value) {
    if (y != NULL) {
        y->op_params[slot] = value;
    }
}

GCUDAI_UNUSED static void gcudai_set_param_f32(struct gcuda_tensor * y, int slot, float value) {
    if (y != NULL) {
        memcpy(&y->op_params[slot], &value, sizeof(value));
    }
}

GCUDAI_UNUSED static int32_t gcudai_param_i32(const struct gcuda_tensor * y, int slot) { return y->op_params[slot]; }

GCUDAI_UNUSED static float gcudai_param_f32(const struct gcuda_tensor * y, int slot) {
    float value;
    memcpy(&value, &y->op_params[slot], sizeof(value));
    return value;
}

// Runs the check. A refused node leaves the context as it was, but for the error it keeps.
static struct gcuda_tensor * gcudai_op_finish(struct gcuda_context * ctx, struct gcuda_tensor * y) {
    if (y == NULL) {
        return NULL;
    }
    const gcuda_status st = gcudai_check_node(y);
    if (st != GCUDA_STATUS_SUCCESS) {
        gcudai_latch(ctx, st);
        gcudai_object_pop(ctx, y);
        return NULL;
    }
    return y;
}

// ---- what CPU functions are made of ----

static struct gcuda_array gcudai_array(const struct gcuda_tensor * t) {
    struct gcuda_array a;
    GCUDAI_ZERO(a);
    if (t != NULL) {
        a.data = t->data;
        a.type = t->type;
        memcpy(a.ne, t->ne, sizeof(a.ne));
        memcpy(a.nb, t->nb, sizeof(a.nb));
    }
    return a;
}

GCUDAI_UNUSED static char * gcudai_at(const struct gcuda_array * a, int64_t i1, int64_t i2, int64_t i3) {
    return (char *) a->data + (size_t) i1 * a->nb[1] + (size_t) i2 * a->nb[2] + (size_t) i3 * a->nb[3];
}

// Start of row r, counting dimensions 1, 2, 3 in this order.
GCUDAI_UNUSED static char * gcudai_row(const struct gcuda_array * a, int64_t r) {
    const int64_t i1 = r % a->ne[1], i2 = r / a->ne[1] % a->ne[2], i3 = r / a->ne[1] / a->ne[2];
    return gcudai_at(a, i1, i2, i3);
}

static void gcudai_none_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    (void) y;
    (void) w;
}

GCUDAI_UNUSED static void gcudai_one_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    w->n_items[0] = 1;
    w->item_cost[0] = (double) gcuda_nelements(y);
}

static void gcudai_rows_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    int64_t ne0 = y->ne[0];
    for (int i = 0; i < GCUDA_MAX_SRC; ++i) {
        if (y->src[i] != NULL && y->src[i]->ne[0] > ne0) {
            ne0 = y->src[i]->ne[0];
        }
    }
    w->n_items[0] = gcuda_nrows(y);
    w->item_cost[0] = 20.0 + 4.0 * (double) ne0;
}

static gcuda_status gcudai_any_can(const struct gcuda_tensor * y) {
    (void) y;
    return GCUDA_STATUS_SUCCESS;
}

// >>op:none -------------------------------------------------------------------------------------------
static void gcudai_none_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    (void) y;
    args->none.unused = 0;
}

static gcuda_status gcudai_none_check(const struct gcuda_tensor * y) {
    (void) y;
    return GCUDA_STATUS_SUCCESS;
}

static void gcudai_none_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    (void) args;
    (void) t;
}

// What all four view operations share: the result aliases src0's owner and has its type.
static gcuda_status gcudai_want_alias(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * a = y->src[0];
    const struct gcuda_tensor * root = a->view_src ? a->view_src : a;
    GCUDAI_WANT(y, y->view_src == root && y->type == a->type, "result must be a view of its source with the same type");
    return GCUDA_STATUS_SUCCESS;
}

// >>op:reshape ----------------------------------------------------------------------------------------
static struct gcuda_tensor * gcudai_reshape(struct gcuda_context * ctx, struct gcuda_tensor * a, const int64_t * ne) {
    struct gcuda_tensor * src[] = { a };
    int64_t n = 1;
    if (!gcudai_op_begin(ctx, GCUDA_OP_RESHAPE, src, 1)) {
        return NULL;
    }
    const bool is_ok = gcudai_mul_i64(ne[0], ne[1], &n) && gcudai_mul_i64(n, ne[2], &n) && gcudai_mul_i64(n, ne[3], &n);
    if (!is_ok || n != gcuda_nelements(a) || !gcuda_is_contiguous(a)) {
        return gcudai_op_error(ctx, GCUDA_OP_RESHAPE, "[%lld, %lld, %lld, %lld] from '%s' [%lld, %lld, %lld, %lld]%s: element counts must be equal and the source contiguous",
                               (long long) ne[0], (long long) ne[1], (long long) ne[2], (long long) ne[3], a->name, (long long) a->ne[0],
                               (long long) a->ne[1], (long long) a->ne[2], (long long) a->ne[3], gcuda_is_contiguous(a) ? "" : " with gaps");
    }
    struct gcuda_tensor * y = gcudai_tensor_new(ctx, a->type, ne, a, 0);
    gcuda_format_name(y, "%s (reshaped)", a->name);
    return gcudai_op_finish(ctx, gcudai_op_attach(y, GCUDA_OP_RESHAPE, src, 1));
}

struct gcuda_tensor * gcuda_reshape(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    struct gcuda_tensor * src[] = { b };
    return gcudai_op_begin(ctx, GCUDA_OP_RESHAPE, src, 1) ? gcudai_reshape(ctx, a, b->ne) : NULL;
}

struct gcuda_tensor * gcuda_reshape_1d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0) { return gcuda_reshape_4d(ctx, a, ne0, 1, 1, 1); }
struct gcuda_tensor * gcuda_reshape_2d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1) { return gcuda_reshape_4d(ctx, a, ne0, ne1, 1, 1); }
struct gcuda_tensor * gcuda_reshape_3d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1, int64_t ne2) { return gcuda_reshape_4d(ctx, a, ne0, ne1, ne2, 1); }

struct gcuda_tensor * gcuda_reshape_4d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    const int64_t ne[GCUDA_MAX_DIMS] = { ne0, ne1, ne2, ne3 };
    return gcudai_reshape(ctx, a, ne);
}

static gcuda_status gcudai_reshape_check(const struct gcuda_tensor * y) {
    GCUDAI_TRY(gcudai_want_alias(y));
    GCUDAI_TRY(gcudai_want_contiguous(y, y->src[0]));
    GCUDAI_WANT(y, gcuda_nelements(y) == gcuda_nelements(y->src[0]) && gcuda_is_contiguous(y) && y->view_offs == y->src[0]->view_offs,
                "result must hold the elements of the source");
    return GCUDA_STATUS_SUCCESS;
}

static void gcudai_reshape_cpu(const union gcudai_args * args, const struct gcudai_task * t) { gcudai_none_cpu(args, t); }

// >>op:view -------------------------------------------------------------------------------------------
// nb[0] is the type size; nb[i] of 0 for i >= n_given is dense.
static struct gcuda_tensor * gcudai_view(struct gcuda_context * ctx, struct gcuda_tensor * a, const int64_t * ne, const size_t * nb, int n_given, size_t offset) {
    struct gcuda_tensor * src[] = { a };
    if (!gcudai_op_begin(ctx, GCUDA_OP_VIEW, src, 1)) {
        return NULL;
    }
    const gcuda_status before = ctx->error;
    struct gcuda_tensor * y = gcudai_tensor_new(ctx, a->type, ne, a, offset);
    if (y == NULL) {
        gcudai_op_blame(ctx, GCUDA_OP_VIEW, before, src, 1);
        return NULL;
    }
    bool is_ok = true;
    for (int i = 1; i < GCUDA_MAX_DIMS; ++i) {
        if (i < n_given) {
            y->nb[i] = nb[i];
        } else if (n_given > 1) {
            is_ok = is_ok && gcudai_mul_size(y->nb[i - 1], (size_t) ne[i - 1], &y->nb[i]);
        }
    }
    gcuda_format_name(y, "%s (view)", a->name);
    const uint64_t offset64 = offset;
    memcpy(y->op_params, &offset64, sizeof(offset64));
    if (!is_ok) {
        gcudai_object_pop(ctx, y);
        return gcudai_op_error(ctx, GCUDA_OP_VIEW, "strides overflow");
    }
    return gcudai_op_finish(ctx, gcudai_op_attach(y, GCUDA_OP_VIEW, src, 1));
}

struct gcuda_tensor * gcuda_view_1d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, size_t offset) {
    const int64_t ne[GCUDA_MAX_DIMS] = { ne0, 1, 1, 1 };
    return gcudai_view(ctx, a, ne, NULL, 1, offset);
}

struct gcuda_tensor * gcuda_view_2d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1, size_t nb1, size_t offset) {
    const int64_t ne[GCUDA_MAX_DIMS] = { ne0, ne1, 1, 1 };
    const size_t nb[GCUDA_MAX_DIMS] = { 0, nb1, 0, 0 };
    return gcudai_view(ctx, a, ne, nb, 2, offset);
}

struct gcuda_tensor * gcuda_view_3d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1, int64_t ne2, size_t nb1, size_t nb2, size_t offset) {
    const int64_t ne[GCUDA_MAX_DIMS] = { ne0, ne1, ne2, 1 };
    const size_t nb[GCUDA_MAX_DIMS] = { 0, nb1, nb2, 0 };
    return gcudai_view(ctx, a, ne, nb, 3, offset);
}

struct gcuda_tensor * gcuda_view_4d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3, size_t nb1, size_t nb2, size_t nb3, size_t offset) {
    const int64_t ne[GCUDA_MAX_DIMS] = { ne0, ne1, ne2, ne3 };
    const size_t nb[GCUDA_MAX_DIMS] = { 0, nb1, nb2, nb3 };
    return gcudai_view(ctx, a, ne, nb, 4, offset);
}

static gcuda_status gcudai_view_check(const struct gcuda_tensor * y) {
    GCUDAI_TRY(gcudai_want_alias(y));
    GCUDAI_WANT(y, gcuda_is_empty(y) || y->view_offs >= y->src[0]->view_offs, "view starts before its source");
    return GCUDA_STATUS_SUCCESS;
}

static void gcudai_view_cpu(const union gcudai_args * args, const struct gcudai_task * t) { gcudai_none_cpu(args, t); }

// >>op:permute ----------------------------------------------------------------------------------------
static struct gcuda_tensor * gcudai_permuted(struct gcuda_context * ctx, enum gcuda_op op, struct gcuda_tensor * a, const int * axis, const char * suffix) {
    struct gcuda_tensor * src[] = { a };
    int64_t ne[GCUDA_MAX_DIMS];
    size_t nb[GCUDA_MAX_DIMS];
    for (int i = 0; i < GCUDA_MAX_DIMS; ++i) {
        ne[axis[i]] = a->ne[i];
        nb[axis[i]] = a->nb[i];
    }
    struct gcuda_tensor * y = gcudai_view_like(ctx, a);
    if (y == NULL) {
        return NULL;
    }
    memcpy(y->ne, ne, sizeof(ne));
    memcpy(y->nb, nb, sizeof(nb));
    gcuda_format_name(y, "%s (%s)", a->name, suffix);
    for (int i = 0; i < GCUDA_MAX_DIMS && op == GCUDA_OP_PERMUTE; ++i) {
        gcudai_set_param_i32(y, i, axis[i]);
    }
    return gcudai_op_finish(ctx, gcudai_op_attach(y, op, src, 1));
}

static bool gcudai_is_permutation(const int * axis) {
    int seen = 0;
    for (int i = 0; i < GCUDA_MAX_DIMS; ++i) {
        if (axis[i] < 0 || axis[i] >= GCUDA_MAX_DIMS) {
            return false;
        }
        seen |= 1 << axis[i];
    }
    return seen == 15;
}

struct gcuda_tensor * gcuda_permute(struct gcuda_context * ctx, struct gcuda_tensor * a, int axis0, int axis1, int axis2, int axis3) {
    struct gcuda_tensor * src[] = { a };
    const int axis[GCUDA_MAX_DIMS] = { axis0, axis1, axis2, axis3 };
    if (!gcudai_op_begin(ctx, GCUDA_OP_PERMUTE, src, 1)) {
        return NULL;
    }
    if (!gcudai_is_permutation(axis)) {
        return gcudai_op_error(ctx, GCUDA_OP_PERMUTE, "axes %d, %d, %d, %d are not a permutation of 0..3", axis0, axis1, axis2, axis3);
    }
    return gcudai_permuted(ctx, GCUDA_OP_PERMUTE, a, axis, "permuted");
}

static gcuda_status gcudai_want_permuted(const struct gcuda_tensor * y, const int * axis) {
    const struct gcuda_tensor * a = y->src[0];
    GCUDAI_TRY(gcudai_want_alias(y));
    for (int i = 0; i < GCUDA_MAX_DIMS; ++i) {
        GCUDAI_WANT(y, y->ne[axis[i]] == a->ne[i] && y->nb[axis[i]] == a->nb[i], "dimension %d must be dimension %d of the source", axis[i], i);
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_permute_check(const struct gcuda_tensor * y) {
    int axis[GCUDA_MAX_DIMS];
    for (int i = 0; i < GCUDA_MAX_DIMS; ++i) {
        axis[i] = gcudai_param_i32(y, i);
    }
    GCUDAI_WANT(y, gcudai_is_permutation(axis), "axes %d, %d, %d, %d are not a permutation of 0..3", axis[0], axis[1], axis[2], axis[3]);
    return gcudai_want_permuted(y, axis);
}

static void gcudai_permute_cpu(const union gcudai_args * args, const struct gcudai_task * t) { gcudai_none_cpu(args, t); }

// >>op:transpose --------------------------------------------------------------------------------------
static const int gcudai_transpose_axes[GCUDA_MAX_DIMS] = { 1, 0, 2, 3 };

struct gcuda_tensor * gcuda_transpose(struct gcuda_context * ctx, struct gcuda_tensor * a) {
    struct gcuda_tensor * src[] = { a };
    if (!gcudai_op_begin(ctx, GCUDA_OP_TRANSPOSE, src, 1)) {
        return NULL;
    }
    return gcudai_permuted(ctx, GCUDA_OP_TRANSPOSE, a, gcudai_transpose_axes, "transposed");
}

static gcuda_status gcudai_transpose_check(const struct gcuda_tensor * y) { return gcudai_want_permuted(y, gcudai_transpose_axes); }
static void gcudai_transpose_cpu(const union gcudai_args * args, const struct gcudai_task * t) { gcudai_none_cpu(args, t); }

// >>op:custom -----------------------------------------------------------------------------------------
// Stored in op_params: the callback and its user pointer (a function pointer does not fit a void * by the standard,
// but its bytes do fit here).
struct gcudai_custom_params {
    void (*fun)(void);
    void * userdata;
    int32_t kind, n_tasks;
};

static struct gcuda_tensor * gcudai_custom(struct gcuda_context * ctx, struct gcuda_tensor * y, void (*fun)(void), int kind, int n_tasks, void * userdata) {
    struct gcudai_custom_params p;
    GCUDAI_ZERO(p);
    p.fun = fun;
    p.userdata = userdata;
    p.kind = kind;
    p.n_tasks = n_tasks;
    if (y != NULL) {
        memcpy(y->op_params, &p, sizeof(p));
    }
    return gcudai_op_finish(ctx, y);
}

static struct gcuda_tensor * gcudai_map_custom(struct gcuda_context * ctx, struct gcuda_tensor * const * src, int n, void (*fun)(void), int n_tasks, void * userdata, bool inplace) {
    for (int i = 0; i < n; ++i) {
        if (src[i] == NULL) {
            if (ctx != NULL && ctx->error == GCUDA_STATUS_SUCCESS) {
                gcudai_op_error(ctx, GCUDA_OP_CUSTOM, "source %d is NULL", i);
            }
            return NULL;
        }
    }
    if (!gcudai_op_begin(ctx, GCUDA_OP_CUSTOM, src, n)) {
        return NULL;
    }
    struct gcuda_tensor * y = inplace ? gcudai_op_view(ctx, GCUDA_OP_CUSTOM, src[0], src, n)
                                      : gcudai_op_new(ctx, GCUDA_OP_CUSTOM, src[0]->type, src[0]->ne, src, n);
    return gcudai_custom(ctx, y, fun, n, n_tasks, userdata);
}

struct gcuda_tensor * gcuda_map_custom1(struct gcuda_context * ctx, struct gcuda_tensor * a, gcuda_custom1_op_t fun, int n_tasks, void * userdata) {
    struct gcuda_tensor * src[] = { a };
    return gcudai_map_custom(ctx, src, 1, (void (*)(void)) fun, n_tasks, userdata, false);
}

struct gcuda_tensor * gcuda_map_custom1_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, gcuda_custom1_op_t fun, int n_tasks, void * userdata) {
    struct gcuda_tensor * src[] = { a };
    return gcudai_map_custom(ctx, src, 1, (void (*)(void)) fun, n_tasks, userdata, true);
}

struct gcuda_tensor * gcuda_map_custom2(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, gcuda_custom2_op_t fun, int n_tasks, void * userdata) {
    struct gcuda_tensor * src[] = { a, b };
    return gcudai_map_custom(ctx, src, 2, (void (*)(void)) fun, n_tasks, userdata, false);
}

struct gcuda_tensor * gcuda_map_custom2_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, gcuda_custom2_op_t fun, int n_tasks, void * userdata) {
    struct gcuda_tensor * src[] = { a, b };
    return gcudai_map_custom(ctx, src, 2, (void (*)(void)) fun, n_tasks, userdata, true);
}

struct gcuda_tensor * gcuda_map_custom3(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c, gcuda_custom3_op_t fun, int n_tasks, void * userdata) {
    struct gcuda_tensor * src[] = { a, b, c };
    return gcudai_map_custom(ctx, src, 3, (void (*)(void)) fun, n_tasks, userdata, false);
}

struct gcuda_tensor * gcuda_map_custom3_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c, gcuda_custom3_op_t fun, int n_tasks, void * userdata) {
    struct gcuda_tensor * src[] = { a, b, c };
    return gcudai_map_custom(ctx, src, 3, (void (*)(void)) fun, n_tasks, userdata, true);
}

struct gcuda_tensor * gcuda_custom_4d(struct gcuda_context * ctx, enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3, struct gcuda_tensor ** args, int n_args, gcuda_custom_op_t fun, int n_tasks, void * userdata) {
    const int64_t ne[GCUDA_MAX_DIMS] = { ne0, ne1, ne2, ne3 };
    if (n_args < 0 || n_args > GCUDA_MAX_SRC || (n_args > 0 && args == NULL)) {
        return gcudai_op_error(ctx, GCUDA_OP_CUSTOM, "%d sources, want 0 to %d", n_args, GCUDA_MAX_SRC);
    }
    if (!gcudai_op_begin(ctx, GCUDA_OP_CUSTOM, args, n_args)) {
        return NULL;
    }
    return gcudai_custom(ctx, gcudai_op_new(ctx, GCUDA_OP_CUSTOM, type, ne, args, n_args), (void (*)(void)) fun, 4, n_tasks, userdata);
}

struct gcuda_tensor * gcuda_custom_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor ** args, int n_args, gcuda_custom_op_t fun, int n_tasks, void * userdata) {
    struct gcuda_tensor * src[GCUDA_MAX_SRC] = { a };
    if (n_args < 0 || n_args >= GCUDA_MAX_SRC || (n_args > 0 && args == NULL)) {
        return gcudai_op_error(ctx, GCUDA_OP_CUSTOM, "%d sources besides the first, want 0 to %d", n_args, GCUDA_MAX_SRC - 1);
    }
    for (int i = 0; i < n_args; ++i) {
        src[i + 1] = args[i];
    }
    if (a == NULL || !gcudai_op_begin(ctx, GCUDA_OP_CUSTOM, src, n_args + 1)) {
        return a == NULL && ctx != NULL && ctx->error == GCUDA_STATUS_SUCCESS ? gcudai_op_error(ctx, GCUDA_OP_CUSTOM, "source 0 is NULL") : NULL;
    }
    return gcudai_custom(ctx, gcudai_op_view(ctx, GCUDA_OP_CUSTOM, a, src, n_args + 1), (void (*)(void)) fun, 4, n_tasks, userdata);
}

static struct gcudai_custom_params gcudai_custom_get(const struct gcuda_tensor * y) {
    struct gcudai_custom_params p;
    memcpy(&p, y->op_params, sizeof(p));
    return p;
}

static gcuda_status gcudai_custom_check(const struct gcuda_tensor * y) {
    const struct gcudai_custom_params p = gcudai_custom_get(y);
    GCUDAI_WANT(y, p.fun != NULL, "callback is NULL");
    GCUDAI_WANT(y, p.kind >= 1 && p.kind <= 4, "kind is %d, want 1 to 4", (int) p.kind);
    GCUDAI_WANT(y, p.n_tasks > 0 || p.n_tasks == GCUDA_N_TASKS_MAX, "n_tasks is %d, want at least 1, or GCUDA_N_TASKS_MAX", (int) p.n_tasks);
    for (int i = 0; i < p.kind && p.kind < 4; ++i) {
        GCUDAI_WANT(y, y->src[i] != NULL, "source %d is NULL", i);
    }
    return GCUDA_STATUS_SUCCESS;
}

static void gcudai_custom_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    const struct gcudai_custom_params p = gcudai_custom_get(y);
    args->custom.dst = (struct gcuda_tensor *) (uintptr_t) y;
    args->custom.fun = p.fun;
    args->custom.userdata = p.userdata;
    args->custom.kind = p.kind;
    args->custom.n_tasks = p.n_tasks == GCUDA_N_TASKS_MAX ? 64 : p.n_tasks; // tasks, not threads: the same split everywhere
}

static void gcudai_custom_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    union gcudai_args args;
    gcudai_custom_args(y, &args);
    w->n_items[0] = args.custom.n_tasks;
    w->item_cost[0] = 1e6; // unknown: hand tasks out one by one
}

static void gcudai_custom_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_custom_args * p = &args->custom;
    struct gcuda_tensor * const * src = p->dst->src;
    for (int64_t i = t->i0; i < t->i1; ++i) {
        const int ith = (int) i;
        switch (p->kind) {
            case 1: ((gcuda_custom1_op_t) p->fun)(p->dst, src[0], ith, p->n_tasks, p->userdata); break;
            case 2: ((gcuda_custom2_op_t) p->fun)(p->dst, src[0], src[1], ith, p->n_tasks, p->userdata); break;
            case 3: ((gcuda_custom3_op_t) p->fun)(p->dst, src[0], src[1], src[2], ith, p->n_tasks, p->userdata); break;
            default: ((gcuda_custom_op_t) p->fun)(p->dst, ith, p->n_tasks, p->userdata); break;
        }
    }
}

// ---------------- ops-a: copies and data movement ----------------

static void gcudai_pad_cpu(const union gcudai_args * args, const struct gcudai_task * t);

// ---- moving elements ----

// Elements of an item at most, a multiple of every block: a long row is split. Quantizers are a hundred times slower
// than a copy.
#define GCUDAI_MOVE_ITEM ((int64_t) 65536)
#define GCUDAI_QUANTIZE_ITEM ((int64_t) 4096)

// n elements of a size, strides in bytes. x stride 0 repeats one element; x == y with the same stride is allowed.
static void gcudai_move(size_t size, const char * x, ptrdiff_t xs, char * y, ptrdiff_t ys, int64_t n) {
    if (x == y && xs == ys) {
        return;
    }
    if ((size_t) xs == size && (size_t) ys == size) {
        memmove(y, x, (size_t) n * size);
        return;
    }
    switch (size) {
        case 1: for (int64_t i = 0; i < n; ++i) { y[i * ys] = x[i * xs]; } break;
        case 2: for (int64_t i = 0; i < n; ++i) { memcpy(y + i * ys, x + i * xs, 2); } break;
        case 4: for (int64_t i = 0; i < n; ++i) { memcpy(y + i * ys, x + i * xs, 4); } break;
        case 8: for (int64_t i = 0; i < n; ++i) { memcpy(y + i * ys, x + i * xs, 8); } break;
        default: for (int64_t i = 0; i < n; ++i) { memmove(y + i * ys, x + i * xs, size); } break;
    }
}

static void gcudai_zero(size_t size, char * y, ptrdiff_t ys, int64_t n) {
    static const char zeros[8] = { 0, 0, 0, 0, 0, 0, 0, 0 };
    if ((size_t) ys == size && n > 0) {
        memset(y, 0, (size_t) n * size);
    } else {
        gcudai_move(size, zeros, 0, y, ys, n);
    }
}

// How elements of one type become those of another. They move in units: the larger of both blocks, else single ones.
struct gcudai_pair {
    enum gcuda_type x_type, y_type;
    int64_t unit;            // elements
    size_t x_bytes, y_bytes; // of a unit
    gcuda_to_float_t to;     // NULL: an integer type
    gcuda_from_float_t from; // NULL: an integer type, or one without a quantizer
};

static struct gcudai_pair gcudai_pair_of(enum gcuda_type x_type, enum gcuda_type y_type) {
    const struct gcuda_type_traits * x = gcuda_get_type_traits(x_type), * y = gcuda_get_type_traits(y_type);
    struct gcudai_pair c;
    c.x_type = x_type;
    c.y_type = y_type;
    c.unit = GCUDAI_MAX(x->blck_size, y->blck_size);
    c.x_bytes = x->type_size * (size_t) (c.unit / x->blck_size);
    c.y_bytes = y->type_size * (size_t) (c.unit / y->blck_size);
    c.to = x->to_float;
    c.from = y->from_float_ref;
    return c;
}

// Is there a conversion at all? Quantizers may be missing: see gcudai_can_quantize.
static bool gcudai_is_pair(enum gcuda_type x, enum gcuda_type y) {
    const bool x_quantized = gcuda_is_quantized(x), y_quantized = gcuda_is_quantized(y);
    const bool x_float = gcudai_is_float(x) || x == GCUDA_TYPE_F64, y_float = gcudai_is_float(y) || y == GCUDA_TYPE_F64;
    return x == y || (!x_quantized && !y_quantized) || (x_quantized && y_float) || (x_float && y_quantized);
}

// Some formats cost much more to find good scales for than to write.
static bool gcudai_is_slow_pair(enum gcuda_type x, enum gcuda_type y) { return x != y && gcuda_is_quantized(y); }

static int32_t gcudai_f32_to_i32(float v) {
    if (!(v >= -2147483648.0f)) {
        return v != v ? 0 : INT32_MIN;
    }
    return v >= 2147483648.0f ? INT32_MAX : (int32_t) v;
}

// At least one side is an integer type; both are plain and packed.
static void gcudai_pair_numbers(const struct gcudai_pair * c, const char * x, char * y, int64_t n) {
    if (c->x_type == GCUDA_TYPE_F32 && c->y_type == GCUDA_TYPE_I32) {
        for (int64_t i = 0; i < n; ++i) { ((int32_t *) (void *) y)[i] = gcudai_f32_to_i32(((const float *) (const void *) x)[i]); }
    } else if (c->x_type == GCUDA_TYPE_I32 && c->y_type == GCUDA_TYPE_F32) {
        for (int64_t i = 0; i < n; ++i) { ((float *) (void *) y)[i] = (float) ((const int32_t *) (const void *) x)[i]; }
    } else {
        for (int64_t i = 0; i < n; ++i) {
            gcudai_set_number(c->y_type, y + (size_t) i * c->y_bytes, gcudai_get_number(c->x_type, x + (size_t) i * c->x_bytes));
        }
    }
}

// At most GCUDAI_PIECE elements, packed on both sides, types that differ.
static void gcudai_pair_packed(const struct gcudai_pair * c, const char * x, char * y, int64_t n) {
    float buf[GCUDAI_PIECE];
    if (c->to == NULL || c->from == NULL) {
        gcudai_pair_numbers(c, x, y, n);
    } else if (c->x_type == GCUDA_TYPE_F32) {
        c->from((const float *) (const void *) x, y, n);
    } else if (c->y_type == GCUDA_TYPE_F32) {
        c->to(x, (float *) (void *) y, n);
    } else {
        c->to(x, buf, n);
        c->from(buf, y, n);
    }
}

// n units from x to y, strides in bytes per unit; strided ones go through packed pieces.
static void gcudai_pair_run(const struct gcudai_pair * c, const char * x, ptrdiff_t xs, char * y, ptrdiff_t ys, int64_t n) {
    double x_packed[GCUDAI_PIECE], y_packed[GCUDAI_PIECE]; // double: aligned for every type
    if (c->x_type == c->y_type) {
        gcudai_move(c->x_bytes, x, xs, y, ys, n);
        return;
    }
    const int64_t step = GCUDAI_PIECE / c->unit;
    for (int64_t i = 0; i < n; i += step) {
        const int64_t m = GCUDAI_MIN(step, n - i);
        const char * from = x + i * xs;
        char * to = y + i * ys;
        if ((size_t) xs != c->x_bytes) {
            gcudai_move(c->x_bytes, from, xs, (char *) x_packed, (ptrdiff_t) c->x_bytes, m);
            from = (const char *) x_packed;
        }
        if ((size_t) ys == c->y_bytes) {
            gcudai_pair_packed(c, from, to, m * c->unit);
        } else {
            gcudai_pair_packed(c, from, (char *) y_packed, m * c->unit);
            gcudai_move(c->y_bytes, (const char *) y_packed, (ptrdiff_t) c->y_bytes, to, ys, m);
        }
    }
}

// ---- rows in pieces: how most operations here are split ----

struct gcudai_piece {
    int64_t i0, n; // elements [i0, i0 + n) of a row
    int64_t row, i1, i2, i3;
};

static int64_t gcudai_n_pieces(int64_t ne0, int64_t max) { return ne0 > 0 ? (ne0 - 1) / max + 1 : 0; }

static struct gcudai_piece gcudai_piece_of(const struct gcuda_array * a, int64_t max, int64_t item) {
    struct gcudai_piece p;
    const int64_t n_pieces = gcudai_n_pieces(a->ne[0], max);
    p.row = item / n_pieces;
    p.i0 = item % n_pieces * max;
    p.n = GCUDAI_MIN(max, a->ne[0] - p.i0);
    p.i1 = p.row % a->ne[1];
    p.i2 = p.row / a->ne[1] % a->ne[2];
    p.i3 = p.row / a->ne[1] / a->ne[2];
    return p;
}

static void gcudai_split_rows(const struct gcuda_tensor * t, int64_t max, double cost, struct gcudai_work * w, int phase) {
    w->n_items[phase] = gcuda_nrows(t) * gcudai_n_pieces(t->ne[0], max);
    w->item_cost[phase] = 100.0 + cost * (double) GCUDAI_MIN(t->ne[0], max);
}

static void gcudai_pieces_work(const struct gcuda_tensor * y, struct gcudai_work * w) { gcudai_split_rows(y, GCUDAI_MOVE_ITEM, 2.0, w, 0); }

// ---- copies between any two layouts ----

// A copy as loops over units. Dimensions are in the order of the destination's strides, merged where both sides allow,
// unless the shapes differ and neither side is contiguous (ragged): then the source keeps a shape of its own.
struct gcudai_walk {
    struct gcudai_pair pair;
    const char * x;
    char * y;
    int64_t ne[GCUDA_MAX_DIMS];                            // units
    ptrdiff_t xs[GCUDA_MAX_DIMS], ys[GCUDA_MAX_DIMS];      // bytes
    int64_t x_ne[GCUDA_MAX_DIMS];                          // of a ragged one
    int64_t step[GCUDA_MAX_DIMS], n_steps[GCUDA_MAX_DIMS]; // an item: one step in each dimension
    bool is_ragged, is_tiled;                              // tiled: in the source dimension 1 is the dense one
};

#define GCUDAI_TILE ((int64_t) 64)       // units of dimension 1 in a tile
#define GCUDAI_TILE_WIDTH ((int64_t) 32) // units of dimension 0 converted at a time

// The dense strides of a shape; false if the array does not have them.
static bool gcudai_dense(const struct gcuda_array * a, const int64_t * ne, size_t * nb) {
    bool is_dense = true;
    size_t expect = gcuda_type_size(a->type);
    for (int d = 0; d < GCUDA_MAX_DIMS; ++d) {
        const int64_t n = d == 0 ? ne[0] / gcuda_blck_size(a->type) : ne[d];
        nb[d] = expect;
        is_dense = is_dense && (n == 1 || a->nb[d] == expect);
        expect *= (size_t) n;
    }
    return is_dense;
}

// A contiguous array takes another shape of as many elements.
static bool gcudai_adopt_shape(struct gcuda_array * a, const int64_t * ne) {
    size_t nb[GCUDA_MAX_DIMS];
    if (!gcudai_dense(a, a->ne, nb)) {
        return false;
    }
    (void) gcudai_dense(a, ne, a->nb);
    memcpy(a->ne, ne, sizeof(a->ne));
    return true;
}

static void gcudai_walk_swap(struct gcudai_walk * w, int d, int e) {
    const int64_t ne = w->ne[d];
    const ptrdiff_t xs = w->xs[d], ys = w->ys[d];
    w->ne[d] = w->ne[e];
    w->xs[d] = w->xs[e];
    w->ys[d] = w->ys[e];
    w->ne[e] = ne;
    w->xs[e] = xs;
    w->ys[e] = ys;
}

// Should dimension d be outside of dimension e?
static bool gcudai_walk_is_outer(const struct gcudai_walk * w, int d, int e) {
    if ((w->ne[d] == 1) != (w->ne[e] == 1)) {
        return w->ne[d] == 1;
    }
    return w->ys[d] != w->ys[e] ? w->ys[d] > w->ys[e] : w->xs[d] > w->xs[e];
}

static void gcudai_walk_order(struct gcudai_walk * w) {
    int n = 1;
    for (int d = 1; d < GCUDA_MAX_DIMS; ++d) {
        for (int e = d; e > 0 && gcudai_walk_is_outer(w, e - 1, e); --e) { gcudai_walk_swap(w, e - 1, e); }
    }
    for (int d = 1; d < GCUDA_MAX_DIMS; ++d) { // merge into dimension n - 1
        const bool is_next = w->xs[d] == w->xs[n - 1] * w->ne[n - 1] && w->ys[d] == w->ys[n - 1] * w->ne[n - 1];
        if (is_next || w->ne[d] == 1) {
            w->ne[n - 1] *= w->ne[d];
            w->ne[d] = 1;
        } else {
            gcudai_walk_swap(w, n++, d);
        }
    }
    int inner = 0;
    for (int d = 1; d < n; ++d) { inner = w->xs[d] < w->xs[inner] ? d : inner; }
    w->is_tiled = inner > 0 && w->pair.unit == 1;
    if (w->is_tiled) { gcudai_walk_swap(w, 1, inner); }
}

static void gcudai_walk_split(struct gcudai_walk * w) {
    const bool is_slow = gcudai_is_slow_pair(w->pair.x_type, w->pair.y_type);
    w->step[0] = (is_slow ? GCUDAI_QUANTIZE_ITEM : GCUDAI_MOVE_ITEM) / (w->pair.unit * (w->is_tiled ? GCUDAI_TILE : 1));
    w->step[1] = w->is_tiled ? GCUDAI_TILE : 1;
    w->step[2] = w->step[3] = 1;
    for (int d = 0; d < GCUDA_MAX_DIMS; ++d) { w->n_steps[d] = gcudai_n_pieces(w->ne[d], w->step[d]); }
}

// The check has seen that rows hold whole units on both sides, and are packed where a unit has several elements.
static void gcudai_walk_init(struct gcudai_walk * w, const struct gcuda_array * x, const struct gcuda_array * y) {
    struct gcuda_array a = *x, b = *y;
    GCUDAI_ZERO(*w);
    w->pair = gcudai_pair_of(x->type, y->type);
    w->x = (const char *) x->data;
    w->y = (char *) y->data;
    w->is_ragged = memcmp(a.ne, b.ne, sizeof(a.ne)) != 0;
    if (w->is_ragged) { // the side without blocks first: its rows need not hold whole ones if it is contiguous
        const bool x_first = gcuda_is_quantized(y->type);
        w->is_ragged = !(x_first ? gcudai_adopt_shape(&a, b.ne) : gcudai_adopt_shape(&b, a.ne)) && !(x_first ? gcudai_adopt_shape(&b, a.ne) : gcudai_adopt_shape(&a, b.ne));
    }
    for (int d = 0; d < GCUDA_MAX_DIMS; ++d) {
        w->ne[d] = d == 0 ? b.ne[0] / w->pair.unit : b.ne[d];
        w->x_ne[d] = d == 0 ? a.ne[0] / w->pair.unit : a.ne[d];
        w->xs[d] = (ptrdiff_t) a.nb[d];
        w->ys[d] = (ptrdiff_t) b.nb[d];
    }
    w->xs[0] *= (ptrdiff_t) (w->pair.unit / gcuda_blck_size(x->type));
    w->ys[0] *= (ptrdiff_t) (w->pair.unit / gcuda_blck_size(y->type));
    if (!w->is_ragged && w->ne[0] > 0) {
        gcudai_walk_order(w);
    }
    gcudai_walk_split(w);
}

static int64_t gcudai_walk_n_items(const struct gcudai_walk * w) { return w->n_steps[0] * w->n_steps[1] * w->n_steps[2] * w->n_steps[3]; }

static double gcudai_walk_cost(const struct gcudai_walk * w) {
    const bool is_same = w->pair.x_type == w->pair.y_type, is_slow = gcudai_is_slow_pair(w->pair.x_type, w->pair.y_type);
    const double per_unit = (double) w->pair.unit * (is_slow ? 100.0 : is_same && !w->is_tiled ? 1.0 : 4.0);
    return 50.0 + per_unit * (double) (GCUDAI_MIN(w->step[0], w->ne[0]) * GCUDAI_MIN(w->step[1], w->ne[1]));
}

// n0 x n1 units; in the source dimension 1 is dense, in the destination dimension 0. Through a small square that holds
// converted columns, so that both sides are touched in whole cache lines.
static void gcudai_walk_tile(const struct gcudai_walk * w, const char * x, char * y, int64_t n0, int64_t n1) {
    double square[GCUDAI_TILE_WIDTH * GCUDAI_TILE];
    const ptrdiff_t size = (ptrdiff_t) w->pair.y_bytes, column = (ptrdiff_t) GCUDAI_TILE * size;
    for (int64_t i0 = 0; i0 < n0; i0 += GCUDAI_TILE_WIDTH) {
        const int64_t m = GCUDAI_MIN(GCUDAI_TILE_WIDTH, n0 - i0);
        for (int64_t j = 0; j < m; ++j) { gcudai_pair_run(&w->pair, x + (i0 + j) * w->xs[0], w->xs[1], (char *) square + j * column, size, n1); }
        for (int64_t j = 0; j < n1; ++j) { gcudai_move(w->pair.y_bytes, (const char *) square + j * size, column, y + i0 * w->ys[0] + j * w->ys[1], w->ys[0], m); }
    }
}

// Units [k, k + n) of the destination in logical order, which share a row there.
static void gcudai_walk_ragged(const struct gcudai_walk * w, int64_t k, char * y, int64_t n) {
    for (int64_t done = 0; done < n;) {
        ptrdiff_t offset = 0;
        int64_t rest = k + done;
        for (int d = 0; d < GCUDA_MAX_DIMS; ++d) {
            offset += rest % w->x_ne[d] * w->xs[d];
            rest /= w->x_ne[d];
        }
        const int64_t m = GCUDAI_MIN(n - done, w->x_ne[0] - (k + done) % w->x_ne[0]);
        gcudai_pair_run(&w->pair, w->x + offset, w->xs[0], y + done * w->ys[0], w->ys[0], m);
        done += m;
    }
}

static void gcudai_walk_run(const struct gcudai_walk * w, int64_t first, int64_t end) {
    int64_t at[GCUDA_MAX_DIMS], rest = first;
    for (int d = 0; d < GCUDA_MAX_DIMS && first < end; ++d) {
        at[d] = rest % w->n_steps[d];
        rest /= w->n_steps[d];
    }
    for (int64_t item = first; item < end; ++item) {
        const int64_t i0 = at[0] * w->step[0], i1 = at[1] * w->step[1];
        const int64_t n0 = GCUDAI_MIN(w->step[0], w->ne[0] - i0), n1 = GCUDAI_MIN(w->step[1], w->ne[1] - i1);
        char * y = w->y + i0 * w->ys[0] + i1 * w->ys[1] + at[2] * w->ys[2] + at[3] * w->ys[3];
        if (w->is_ragged) {
            gcudai_walk_ragged(w, i0 + w->ne[0] * (i1 + w->ne[1] * (at[2] + w->ne[2] * at[3])), y, n0);
        } else {
            const char * x = w->x + i0 * w->xs[0] + i1 * w->xs[1] + at[2] * w->xs[2] + at[3] * w->xs[3];
            if (w->is_tiled) {
                gcudai_walk_tile(w, x, y, n0, n1);
            } else {
                gcudai_pair_run(&w->pair, x, w->xs[0], y, w->ys[0], n0);
            }
        }
        for (int d = 0; d < GCUDA_MAX_DIMS && ++at[d] == w->n_steps[d]; ++d) { at[d] = 0; }
    }
}

// ---- checks and constructors ----

// Every dimension steps over all that lies within the smaller ones: no two elements share memory. Strides that
// interleave without meeting are refused too.
static bool gcudai_is_disjoint(enum gcuda_type type, const int64_t * ne, const size_t * nb) {
    const int64_t units[GCUDA_MAX_DIMS] = { ne[0] / gcuda_blck_size(type), ne[1], ne[2], ne[3] };
    size_t extent = gcuda_type_size(type);
    bool is_done[GCUDA_MAX_DIMS] = { false, false, false, false };
    for (int k = 0; k < GCUDA_MAX_DIMS; ++k) {
        int next = -1;
        for (int d = 0; d < GCUDA_MAX_DIMS; ++d) {
            if (!is_done[d] && units[d] > 1 && (next < 0 || nb[d] < nb[next])) { next = d; }
        }
        if (next < 0) {
            break;
        }
        if (nb[next] < extent) {
            return false;
        }
        extent += nb[next] * (size_t) (units[next] - 1);
        is_done[next] = true;
    }
    return true;
}

static gcuda_status gcudai_want_plain(const struct gcuda_tensor * y, const struct gcuda_tensor * t) {
    GCUDAI_WANT(y, !gcuda_is_quantized(t->type), "type of '%s' is %s, want one that is not quantized", t->name, gcuda_type_name(t->type));
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_want_same_type(const struct gcuda_tensor * y, const struct gcuda_tensor * a, const struct gcuda_tensor * b) {
    GCUDAI_WANT(y, a->type == b->type, "types of '%s' and '%s' must be equal, are %s and %s", a->name, b->name, gcuda_type_name(a->type), gcuda_type_name(b->type));
    return GCUDA_STATUS_SUCCESS;
}

// Elements of x can become those of t, in units: rows packed and of whole units, unless all elements are packed.
static gcuda_status gcudai_want_pair(const struct gcuda_tensor * y, const struct gcuda_tensor * x, const struct gcuda_tensor * t) {
    GCUDAI_WANT(y, gcudai_is_pair(x->type, t->type), "%s does not convert to %s", gcuda_type_name(x->type), gcuda_type_name(t->type));
    const int64_t unit = GCUDAI_MAX(gcuda_blck_size(x->type), gcuda_blck_size(t->type));
    for (int k = 0; k < 2 && unit > 1 && x->type != t->type; ++k) {
        const struct gcuda_tensor * side = k == 0 ? x : t;
        if (gcuda_is_quantized(side->type) || !gcuda_is_contiguous(side)) {
            GCUDAI_TRY(gcudai_want_rows(y, side));
            GCUDAI_WANT(y, side->ne[0] % unit == 0, "rows of %lld elements must be whole blocks of %lld", (long long) side->ne[0], (long long) unit);
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_quantizer_can(const struct gcuda_tensor * y) {
    const bool is_copy = y->src[0]->type == y->type;
    GCUDAI_CAN(y, is_copy || !gcuda_is_quantized(y->type) || gcuda_get_type_traits(y->type)->from_float_ref != NULL, "there is no quantizer for %s", gcuda_type_name(y->type));
    return GCUDA_STATUS_SUCCESS;
}

// Said by the constructor itself where a result of quantized rows could not even be made.
static bool gcudai_is_plain_source(struct gcuda_context * ctx, enum gcuda_op op, const struct gcuda_tensor * a) {
    if (gcuda_is_quantized(a->type)) {
        gcudai_op_error(ctx, op, "type of '%s' [%lld, %lld, %lld, %lld] is %s, want one that is not quantized", a->name, (long long) a->ne[0],
                        (long long) a->ne[1], (long long) a->ne[2], (long long) a->ne[3], gcuda_type_name(a->type));
        return false;
    }
    return true;
}

static struct gcuda_tensor * gcudai_op_like(struct gcuda_context * ctx, enum gcuda_op op, struct gcuda_tensor * a, struct gcuda_tensor * const * src, int n, bool inplace) {
    return inplace ? gcudai_op_view(ctx, op, a, src, n) : gcudai_op_new(ctx, op, a->type, a->ne, src, n);
}

// >>op:dup --------------------------------------------------------------------------------------------
static struct gcuda_tensor * gcudai_dup(struct gcuda_context * ctx, struct gcuda_tensor * a, bool inplace) {
    struct gcuda_tensor * src[] = { a };
    if (!gcudai_op_begin(ctx, GCUDA_OP_DUP, src, 1)) {
        return NULL;
    }
    return gcudai_op_finish(ctx, gcudai_op_like(ctx, GCUDA_OP_DUP, a, src, 1, inplace));
}

struct gcuda_tensor * gcuda_dup(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_dup(ctx, a, false); }
struct gcuda_tensor * gcuda_dup_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_dup(ctx, a, true); }

// What dup, cont and cpy share.
static gcuda_status gcudai_want_copy(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * x = y->src[0];
    GCUDAI_WANT(y, gcuda_nelements(x) == gcuda_nelements(y), "%lld elements cannot be copied to %lld", (long long) gcuda_nelements(x), (long long) gcuda_nelements(y));
    return gcudai_want_pair(y, x, y);
}

static gcuda_status gcudai_dup_check(const struct gcuda_tensor * y) {
    GCUDAI_TRY(gcudai_want_same_type(y, y->src[0], y));
    GCUDAI_TRY(gcudai_want_like(y, y->src[0]));
    return gcudai_want_copy(y);
}

static void gcudai_cpy_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->cpy.x = gcudai_array(y->src[0]);
    args->cpy.y = gcudai_array(y);
}

static void gcudai_cpy_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    const struct gcuda_array a = gcudai_array(y->src[0]), b = gcudai_array(y);
    struct gcudai_walk walk;
    gcudai_walk_init(&walk, &a, &b);
    w->n_items[0] = gcudai_walk_n_items(&walk);
    w->item_cost[0] = gcudai_walk_cost(&walk);
}

static void gcudai_cpy_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_cpy_args * p = &args->cpy;
    struct gcudai_walk walk;
    if (p->x.data != p->y.data || p->x.type != p->y.type) { // else in place
        gcudai_walk_init(&walk, &p->x, &p->y);
        gcudai_walk_run(&walk, t->i0, t->i1);
    }
}

static void gcudai_dup_cpu(const union gcudai_args * args, const struct gcudai_task * t) { gcudai_cpy_cpu(args, t); }

// >>op:cont -------------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_cont_4d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    struct gcuda_tensor * src[] = { a };
    const int64_t ne[GCUDA_MAX_DIMS] = { ne0, ne1, ne2, ne3 };
    if (!gcudai_op_begin(ctx, GCUDA_OP_CONT, src, 1)) {
        return NULL;
    }
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_CONT, a->type, ne, src, 1);
    return gcudai_op_finish(ctx, gcuda_format_name(y, "%s (cont)", a->name));
}

struct gcuda_tensor * gcuda_cont(struct gcuda_context * ctx, struct gcuda_tensor * a) {
    return a ? gcuda_cont_4d(ctx, a, a->ne[0], a->ne[1], a->ne[2], a->ne[3]) : gcuda_cont_4d(ctx, a, 0, 0, 0, 0);
}

struct gcuda_tensor * gcuda_cont_1d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0) { return gcuda_cont_4d(ctx, a, ne0, 1, 1, 1); }
struct gcuda_tensor * gcuda_cont_2d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1) { return gcuda_cont_4d(ctx, a, ne0, ne1, 1, 1); }
struct gcuda_tensor * gcuda_cont_3d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1, int64_t ne2) { return gcuda_cont_4d(ctx, a, ne0, ne1, ne2, 1); }

static gcuda_status gcudai_cont_check(const struct gcuda_tensor * y) {
    GCUDAI_TRY(gcudai_want_same_type(y, y->src[0], y));
    return gcudai_want_copy(y);
}

static void gcudai_cont_cpu(const union gcudai_args * args, const struct gcudai_task * t) { gcudai_cpy_cpu(args, t); }

// >>op:cpy --------------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_cpy(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    struct gcuda_tensor * src[] = { a, b };
    if (!gcudai_op_begin(ctx, GCUDA_OP_CPY, src, 2)) {
        return NULL;
    }
    if (b == NULL) {
        return ctx->error == GCUDA_STATUS_SUCCESS ? gcudai_op_error(ctx, GCUDA_OP_CPY, "source 1 is NULL") : NULL;
    }
    return gcudai_op_finish(ctx, gcudai_op_view(ctx, GCUDA_OP_CPY, b, src, 2));
}

// The node has one source: no tensor is its own.
struct gcuda_tensor * gcuda_cast(struct gcuda_context * ctx, struct gcuda_tensor * a, enum gcuda_type type) {
    struct gcuda_tensor * src[] = { a };
    if (!gcudai_op_begin(ctx, GCUDA_OP_CPY, src, 1)) {
        return NULL;
    }
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_CPY, type, a->ne, src, 1);
    return gcudai_op_finish(ctx, gcuda_format_name(y, "%s (copy)", a->name));
}

static gcuda_status gcudai_cpy_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * b = y->src[1];
    if (b != NULL) {
        GCUDAI_WANT(y, y->view_src == (b->view_src ? b->view_src : b) && y->view_offs == b->view_offs && gcudai_same_layout(y, b),
                    "result must be a view of source 1 with its shape and strides");
    }
    GCUDAI_WANT(y, gcudai_is_disjoint(y->type, y->ne, y->nb), "the destination overlaps itself");
    return gcudai_want_copy(y);
}

// >>op:get_rows ---------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_get_rows(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    struct gcuda_tensor * src[] = { a, b };
    if (!gcudai_op_begin(ctx, GCUDA_OP_GET_ROWS, src, 2)) {
        return NULL;
    }
    const int64_t ne[GCUDA_MAX_DIMS] = { a->ne[0], b->ne[0], b->ne[1], b->ne[2] };
    const enum gcuda_type type = gcudai_to_float(a->type) ? GCUDA_TYPE_F32 : a->type;
    return gcudai_op_finish(ctx, gcudai_op_new(ctx, GCUDA_OP_GET_ROWS, type, ne, src, 2));
}

static gcuda_status gcudai_get_rows_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * a = y->src[0], * b = y->src[1];
    GCUDAI_TRY(gcudai_want_type(y, b, GCUDA_TYPE_I32));
    GCUDAI_WANT(y, a->ne[2] == b->ne[1] && a->ne[3] == b->ne[2] && b->ne[3] == 1, "indices must be [rows, %lld, %lld, 1]", (long long) a->ne[2], (long long) a->ne[3]);
    GCUDAI_TRY(gcudai_want_type(y, y, gcudai_to_float(a->type) ? GCUDA_TYPE_F32 : a->type));
    GCUDAI_TRY(gcudai_want_shape(y, a->ne[0], b->ne[0], b->ne[1], b->ne[2]));
    return gcudai_want_pair(y, a, y);
}

static void gcudai_get_rows_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->get_rows.x = gcudai_array(y->src[0]);
    args->get_rows.ids = gcudai_array(y->src[1]);
    args->get_rows.y = gcudai_array(y);
}

// An index tensor's element, I32 or I64.
static int64_t gcudai_index_at(const struct gcuda_array * ids, int64_t i0, int64_t i1, int64_t i2) {
    const char * p = gcudai_at(ids, i1, i2, 0) + (size_t) i0 * ids->nb[0];
    int32_t i32;
    int64_t i64;
    if (ids->type == GCUDA_TYPE_I64) {
        memcpy(&i64, p, sizeof(i64));
        return i64;
    }
    memcpy(&i32, p, sizeof(i32));
    return i32;
}

// Elements [i0, i0 + n) of a row, whole units, to another row.
static void gcudai_copy_row(const struct gcudai_pair * c, const struct gcuda_array * a, const char * x, const struct gcuda_array * b, char * y, int64_t i0, int64_t n) {
    const ptrdiff_t xs = (ptrdiff_t) (a->nb[0] * (size_t) (c->unit / gcuda_blck_size(a->type)));
    const ptrdiff_t ys = (ptrdiff_t) (b->nb[0] * (size_t) (c->unit / gcuda_blck_size(b->type)));
    gcudai_pair_run(c, x + i0 / c->unit * xs, xs, y + i0 / c->unit * ys, ys, n / c->unit);
}

static void gcudai_get_rows_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_get_rows_args * p = &args->get_rows;
    const struct gcudai_pair pair = gcudai_pair_of(p->x.type, p->y.type);
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_piece c = gcudai_piece_of(&p->y, GCUDAI_MOVE_ITEM, item);
        const int64_t from = gcudai_index_at(&p->ids, c.i1, c.i2, c.i3);
        char * y = gcudai_at(&p->y, c.i1, c.i2, c.i3);
        if (from >= 0 && from < p->x.ne[1]) {
            gcudai_copy_row(&pair, &p->x, gcudai_at(&p->x, from, c.i2, c.i3), &p->y, y, c.i0, c.n);
        } else {
            gcudai_bad_index(t, c.row, from, p->x.ne[1]);
            gcudai_zero(gcuda_type_size(p->y.type), y + (size_t) c.i0 * p->y.nb[0], (ptrdiff_t) p->y.nb[0], c.n);
        }
    }
}

// >>op:get_rows_back ----------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_get_rows_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c) {
    struct gcuda_tensor * src[] = { a, b }, * shape[] = { c };
    if (!gcudai_op_begin(ctx, GCUDA_OP_GET_ROWS_BACK, src, 2) || !gcudai_op_begin(ctx, GCUDA_OP_GET_ROWS_BACK, shape, 1)) {
        return NULL;
    }
    return gcudai_op_finish(ctx, gcudai_op_new(ctx, GCUDA_OP_GET_ROWS_BACK, GCUDA_TYPE_F32, c->ne, src, 2));
}

static gcuda_status gcudai_get_rows_back_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * a = y->src[0], * b = y->src[1];
    GCUDAI_TRY(gcudai_want_float(y, a));
    GCUDAI_TRY(gcudai_want_type(y, b, GCUDA_TYPE_I32));
    GCUDAI_TRY(gcudai_want_type(y, y, GCUDA_TYPE_F32));
    GCUDAI_WANT(y, gcuda_is_matrix(a) && gcuda_is_vector(b) && gcuda_is_matrix(y), "gradient and result must be matrices, indices a vector");
    GCUDAI_WANT(y, a->ne[1] == b->ne[0], "%lld rows and %lld indices", (long long) a->ne[1], (long long) b->ne[0]);
    GCUDAI_WANT(y, a->ne[0] == y->ne[0], "rows of the gradient have %lld elements, of the result %lld", (long long) a->ne[0], (long long) y->ne[0]);
    return GCUDA_STATUS_SUCCESS;
}

// Scratch: for every row of the result the first row of the gradient that goes there, and for each of these the next.
static void gcudai_get_rows_back_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    const int64_t n_ids = y->src[1]->ne[0], m = y->ne[1];
    size_t n = 0;
    w->n_phases = 2;
    w->n_items[0] = 1;
    w->item_cost[0] = 4.0 * ((double) m + (double) n_ids);
    gcudai_split_rows(y, GCUDAI_PIECE, 2.0 * (1.0 + (double) n_ids / (double) GCUDAI_MAX(m, 1)), w, 1);
    if (!gcudai_add_size((size_t) m, (size_t) n_ids, &n) || !gcudai_mul_size(n, sizeof(int64_t), &w->shared_bytes)) {
        w->shared_bytes = SIZE_MAX;
    }
}

static void gcudai_get_rows_back_chain(const struct gcuda_get_rows_args * p, const struct gcudai_task * t, int64_t * first, int64_t * next) {
    for (int64_t j = 0; j < p->y.ne[1]; ++j) { first[j] = -1; }
    for (int64_t r = p->ids.ne[0] - 1; r >= 0; --r) {
        const int64_t j = gcudai_index_at(&p->ids, r, 0, 0);
        if (j < 0 || j >= p->y.ne[1]) {
            gcudai_bad_index(t, r, j, p->y.ne[1]);
            continue;
        }
        next[r] = first[j];
        first[j] = r;
    }
}

static void gcudai_get_rows_back_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_get_rows_args * p = &args->get_rows;
    int64_t * first = (int64_t *) (void *) t->shared, * next = first + p->y.ne[1];
    if (t->phase == 0) {
        gcudai_get_rows_back_chain(p, t, first, next);
        return;
    }
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_piece c = gcudai_piece_of(&p->y, GCUDAI_PIECE, item);
        double sum[GCUDAI_PIECE];
        float buf[GCUDAI_PIECE];
        GCUDAI_ZERO(sum);
        for (int64_t r = first[c.i1]; r >= 0; r = next[r]) {
            gcudai_load(p->x.type, gcudai_at(&p->x, r, 0, 0) + (size_t) c.i0 * p->x.nb[0], p->x.nb[0], c.n, buf);
            for (int64_t i = 0; i < c.n; ++i) { sum[i] += (double) buf[i]; }
        }
        for (int64_t i = 0; i < c.n; ++i) { buf[i] = (float) sum[i]; }
        gcudai_store(GCUDA_TYPE_F32, gcudai_at(&p->y, c.i1, 0, 0) + (size_t) c.i0 * p->y.nb[0], p->y.nb[0], c.n, buf);
    }
}

// >>op:set_rows ---------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_set_rows(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c) {
    struct gcuda_tensor * src[] = { b, c, a };
    if (!gcudai_op_begin(ctx, GCUDA_OP_SET_ROWS, src, 3)) {
        return NULL;
    }
    return gcudai_op_finish(ctx, gcudai_op_view(ctx, GCUDA_OP_SET_ROWS, a, src, 3));
}

static gcuda_status gcudai_set_rows_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * b = y->src[0], * c = y->src[1], * a = y->src[2];
    GCUDAI_TRY(gcudai_want_float(y, b));
    GCUDAI_WANT(y, gcudai_to_float(y->type) != NULL, "rows cannot be written to %s", gcuda_type_name(y->type));
    GCUDAI_WANT(y, c->type == GCUDA_TYPE_I32 || c->type == GCUDA_TYPE_I64, "type of '%s' is %s, want i32 or i64", c->name, gcuda_type_name(c->type));
    GCUDAI_WANT(y, y->view_src == (a->view_src ? a->view_src : a) && y->view_offs == a->view_offs && gcudai_same_layout(y, a),
                "result must be a view of source 2 with its shape and strides");
    GCUDAI_WANT(y, y->ne[0] == b->ne[0] && y->ne[2] == b->ne[2] && y->ne[3] == b->ne[3], "rows [%lld, any, %lld, %lld] are wanted for '%s'", (long long) y->ne[0],
                (long long) y->ne[2], (long long) y->ne[3], b->name);
    GCUDAI_WANT(y, c->ne[0] == b->ne[1] && c->ne[3] == 1, "%lld rows need indices [%lld, .., .., 1]", (long long) b->ne[1], (long long) b->ne[1]);
    GCUDAI_WANT(y, gcuda_is_empty(b) || (c->ne[1] > 0 && c->ne[2] > 0 && b->ne[2] % c->ne[1] == 0 && b->ne[3] % c->ne[2] == 0),
                "dimensions 1 and 2 of the indices must divide %lld and %lld", (long long) b->ne[2], (long long) b->ne[3]);
    GCUDAI_WANT(y, gcudai_is_disjoint(y->type, y->ne, y->nb), "the destination overlaps itself");
    GCUDAI_TRY(gcudai_want_rows(y, b));
    GCUDAI_TRY(gcudai_want_rows(y, y));
    return gcudai_want_pair(y, b, y);
}

// The last of several rows with the same index stays, for any number of threads: each plane of indices gets a hash table
// from destination to the last row, made in phase 0.
static size_t gcudai_set_rows_slots(const struct gcuda_array * ids) {
    size_t n = 4;
    while (n / 2 < (size_t) ids->ne[0]) { n *= 2; }
    return n;
}

static int64_t gcudai_set_rows_max(const struct gcuda_array * x, const struct gcuda_array * y) {
    return gcudai_is_slow_pair(x->type, y->type) ? GCUDAI_QUANTIZE_ITEM : GCUDAI_MOVE_ITEM;
}

static void gcudai_set_rows_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    const struct gcuda_array x = gcudai_array(y->src[0]), ids = gcudai_array(y->src[1]), a = gcudai_array(y);
    const int64_t n_planes = ids.ne[1] * ids.ne[2];
    size_t n = 0;
    if (ids.ne[0] > 1) {
        w->n_phases = 2;
        w->n_items[0] = n_planes;
        w->item_cost[0] = 20.0 * (double) ids.ne[0];
        if (!gcudai_mul_size((size_t) n_planes, gcudai_set_rows_slots(&ids), &n) || !gcudai_mul_size(n, sizeof(int64_t), &w->shared_bytes)) {
            w->shared_bytes = SIZE_MAX;
        }
    }
    gcudai_split_rows(y->src[0], gcudai_set_rows_max(&x, &a), gcudai_is_slow_pair(x.type, a.type) ? 100.0 : 2.0, w, ids.ne[0] > 1 ? 1 : 0);
}

// Slot of the rows of a plane that go to `to`; the table holds row numbers + 1, 0 is free.
static int64_t * gcudai_set_rows_slot(const struct gcuda_array * ids, int64_t * table, int64_t j1, int64_t j2, int64_t to) {
    const size_t mask = gcudai_set_rows_slots(ids) - 1;
    size_t i = (size_t) ((uint64_t) to * 0x9e3779b97f4a7c15u >> 20) & mask;
    while (table[i] != 0 && gcudai_index_at(ids, table[i] - 1, j1, j2) != to) { i = (i + 1) & mask; }
    return &table[i];
}

static void gcudai_set_rows_index(const struct gcuda_array * ids, int64_t * table, int64_t plane) {
    const int64_t j1 = plane % ids->ne[1], j2 = plane / ids->ne[1];
    memset(table, 0, gcudai_set_rows_slots(ids) * sizeof(*table));
    for (int64_t r = 0; r < ids->ne[0]; ++r) { *gcudai_set_rows_slot(ids, table, j1, j2, gcudai_index_at(ids, r, j1, j2)) = r + 1; }
}

static void gcudai_set_rows_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_get_rows_args * p = &args->get_rows;
    const struct gcudai_pair pair = gcudai_pair_of(p->x.type, p->y.type);
    const bool has_table = p->ids.ne[0] > 1;
    const size_t slots = gcudai_set_rows_slots(&p->ids);
    int64_t * tables = (int64_t *) (void *) t->shared;
    for (int64_t item = t->i0; item < t->i1 && has_table && t->phase == 0; ++item) { gcudai_set_rows_index(&p->ids, tables + (size_t) item * slots, item); }
    if (has_table && t->phase == 0) {
        return;
    }
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_piece c = gcudai_piece_of(&p->x, gcudai_set_rows_max(&p->x, &p->y), item);
        const int64_t j1 = c.i2 % p->ids.ne[1], j2 = c.i3 % p->ids.ne[2], to = gcudai_index_at(&p->ids, c.i1, j1, j2);
        if (to < 0 || to >= p->y.ne[1]) {
            gcudai_bad_index(t, c.row, to, p->y.ne[1]);
        } else if (!has_table || *gcudai_set_rows_slot(&p->ids, tables + (size_t) (j1 + j2 * p->ids.ne[1]) * slots, j1, j2, to) == c.i1 + 1) {
            gcudai_copy_row(&pair, &p->x, gcudai_at(&p->x, c.i1, c.i2, c.i3), &p->y, gcudai_at(&p->y, to, c.i2, c.i3), c.i0, c.n);
        }
    }
}

// >>op:set --------------------------------------------------------------------------------------------
// Strides and offset in 32 bits where they fit, as others store them; slots 5 to 8 hold what is above.
static void gcudai_set_param_bytes(struct gcuda_tensor * y, int slot, size_t bytes) {
    const uint64_t v = bytes;
    const uint32_t low = (uint32_t) v, high = (uint32_t) (v >> 32);
    memcpy(&y->op_params[slot], &low, sizeof(low));
    memcpy(&y->op_params[slot + 5], &high, sizeof(high));
}

static size_t gcudai_param_bytes(const struct gcuda_tensor * y, int slot) {
    uint32_t low, high;
    memcpy(&low, &y->op_params[slot], sizeof(low));
    memcpy(&high, &y->op_params[slot + 5], sizeof(high));
    const uint64_t v = (uint64_t) high << 32 | low;
    return v > SIZE_MAX ? SIZE_MAX : (size_t) v;
}

static struct gcuda_tensor * gcudai_region(struct gcuda_context * ctx, enum gcuda_op op, struct gcuda_tensor * a, struct gcuda_tensor * b, const size_t * nb, size_t offset, bool inplace) {
    struct gcuda_tensor * src[] = { a, b };
    if (!gcudai_op_begin(ctx, op, src, 2)) {
        return NULL;
    }
    struct gcuda_tensor * y = gcudai_op_like(ctx, op, a, src, 2, inplace);
    if (y == NULL) {
        return NULL;
    }
    for (int i = 0; i < 3; ++i) { gcudai_set_param_bytes(y, i, nb[i]); }
    gcudai_set_param_bytes(y, 3, offset);
    gcudai_set_param_i32(y, 4, inplace);
    return gcudai_op_finish(ctx, y);
}

static struct gcuda_tensor * gcudai_set(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, size_t nb1, size_t nb2, size_t nb3, size_t offset, bool inplace) {
    const size_t nb[3] = { nb1, nb2, nb3 };
    return gcudai_region(ctx, GCUDA_OP_SET, a, b, nb, offset, inplace);
}

struct gcuda_tensor * gcuda_set(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, size_t nb1, size_t nb2, size_t nb3, size_t offset) {
    return gcudai_set(ctx, a, b, nb1, nb2, nb3, offset, false);
}

struct gcuda_tensor * gcuda_set_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, size_t nb1, size_t nb2, size_t nb3, size_t offset) {
    return gcudai_set(ctx, a, b, nb1, nb2, nb3, offset, true);
}

struct gcuda_tensor * gcuda_set_1d(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, size_t offset) {
    return gcudai_set(ctx, a, b, a ? a->nb[1] : 0, a ? a->nb[2] : 0, a ? a->nb[3] : 0, offset, false);
}

struct gcuda_tensor * gcuda_set_1d_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, size_t offset) {
    return gcudai_set(ctx, a, b, a ? a->nb[1] : 0, a ? a->nb[2] : 0, a ? a->nb[3] : 0, offset, true);
}

struct gcuda_tensor * gcuda_set_2d(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, size_t nb1, size_t offset) {
    return gcudai_set(ctx, a, b, nb1, a ? a->nb[2] : 0, a ? a->nb[3] : 0, offset, false);
}

struct gcuda_tensor * gcuda_set_2d_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, size_t nb1, size_t offset) {
    return gcudai_set(ctx, a, b, nb1, a ? a->nb[2] : 0, a ? a->nb[3] : 0, offset, true);
}

// The part of y that b goes to; its data is only there if y has some.
static struct gcuda_array gcudai_region_of(const struct gcuda_tensor * y) {
    struct gcuda_array r = gcudai_array(y->src[1]);
    r.type = y->type;
    r.data = y->data ? (char *) y->data + gcudai_param_bytes(y, 3) : NULL;
    r.nb[0] = gcuda_type_size(y->type);
    for (int d = 1; d < GCUDA_MAX_DIMS; ++d) { r.nb[d] = gcudai_param_bytes(y, d - 1); }
    return r;
}

static bool gcudai_region_fits(const struct gcuda_tensor * y, const struct gcuda_array * r) {
    size_t end = gcudai_param_bytes(y, 3), bytes = 0;
    bool is_ok = true;
    for (int d = 0; d < GCUDA_MAX_DIMS; ++d) {
        const int64_t n = d == 0 ? r->ne[0] / gcuda_blck_size(r->type) : r->ne[d] - 1;
        is_ok = is_ok && gcudai_mul_size((size_t) n, r->nb[d], &bytes) && gcudai_add_size(end, bytes, &end);
    }
    return is_ok && end <= gcuda_nbytes(y);
}

static gcuda_status gcudai_want_region(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * a = y->src[0], * b = y->src[1];
    const struct gcuda_array r = gcudai_region_of(y);
    const size_t offset = gcudai_param_bytes(y, 3), size = gcuda_type_size(y->type);
    bool is_aligned = offset % size == 0;
    GCUDAI_TRY(gcudai_want_same_type(y, a, y));
    GCUDAI_TRY(gcudai_want_like(y, a));
    GCUDAI_TRY(gcudai_want_contiguous(y, a));
    GCUDAI_TRY(gcudai_want_contiguous(y, y));
    GCUDAI_WANT(y, gcuda_nelements(b) <= gcuda_nelements(a), "%lld elements do not fit into %lld", (long long) gcuda_nelements(b), (long long) gcuda_nelements(a));
    if (gcuda_is_empty(b)) {
        return GCUDA_STATUS_SUCCESS;
    }
    for (int d = 1; d < GCUDA_MAX_DIMS; ++d) { is_aligned = is_aligned && (r.ne[d] == 1 || r.nb[d] % size == 0); }
    GCUDAI_WANT(y, is_aligned && gcudai_region_fits(y, &r) && gcudai_is_disjoint(r.type, r.ne, r.nb),
                "the region at %llu with strides [%llu, %llu, %llu, %llu] is not within the %llu bytes of the result, overlaps itself, or is no multiple of %llu bytes",
                (unsigned long long) offset, (unsigned long long) r.nb[0], (unsigned long long) r.nb[1], (unsigned long long) r.nb[2], (unsigned long long) r.nb[3],
                (unsigned long long) gcuda_nbytes(y), (unsigned long long) size);
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_set_check(const struct gcuda_tensor * y) {
    GCUDAI_TRY(gcudai_want_same_type(y, y->src[0], y->src[1]));
    return gcudai_want_region(y);
}

static void gcudai_set_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->set.a = gcudai_array(y->src[0]);
    args->set.b = gcudai_array(y->src[1]);
    args->set.y = gcudai_array(y);
    args->set.region = gcudai_region_of(y);
}

// Phase 0 copies a, phase 1 writes the region.
static void gcudai_set_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    const struct gcuda_array b = gcudai_array(y->src[1]), region = gcudai_region_of(y);
    struct gcudai_walk walk;
    gcudai_cpy_work(y, w);
    gcudai_walk_init(&walk, &b, &region);
    w->n_phases = 2;
    w->n_items[1] = gcudai_walk_n_items(&walk);
    w->item_cost[1] = gcudai_walk_cost(&walk);
}

static void gcudai_set_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_set_args * p = &args->set;
    struct gcudai_walk walk;
    if (t->phase == 1) {
        gcudai_walk_init(&walk, &p->b, &p->region);
        gcudai_walk_run(&walk, t->i0, t->i1);
    } else if (p->a.data != p->y.data) {
        gcudai_walk_init(&walk, &p->a, &p->y);
        gcudai_walk_run(&walk, t->i0, t->i1);
    }
}

// >>op:acc --------------------------------------------------------------------------------------------
static struct gcuda_tensor * gcudai_acc(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, size_t nb1, size_t nb2, size_t nb3, size_t offset, bool inplace) {
    const size_t nb[3] = { nb1, nb2, nb3 };
    return gcudai_region(ctx, GCUDA_OP_ACC, a, b, nb, offset, inplace);
}

struct gcuda_tensor * gcuda_acc(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, size_t nb1, size_t nb2, size_t nb3, size_t offset) {
    return gcudai_acc(ctx, a, b, nb1, nb2, nb3, offset, false);
}

struct gcuda_tensor * gcuda_acc_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, size_t nb1, size_t nb2, size_t nb3, size_t offset) {
    return gcudai_acc(ctx, a, b, nb1, nb2, nb3, offset, true);
}

static gcuda_status gcudai_acc_check(const struct gcuda_tensor * y) {
    GCUDAI_TRY(gcudai_want_float(y, y->src[0]));
    GCUDAI_TRY(gcudai_want_float(y, y->src[1]));
    return gcudai_want_region(y);
}

static void gcudai_acc_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    gcudai_cpy_work(y, w);
    w->n_phases = 2;
    gcudai_split_rows(y->src[1], GCUDAI_MOVE_ITEM, 4.0, w, 1);
}

// One piece of a row of b onto y.
static void gcudai_acc_piece(const struct gcuda_set_args * p, const struct gcudai_piece * c) {
    float sum[GCUDAI_PIECE], add[GCUDAI_PIECE];
    for (int64_t i = c->i0; i < c->i0 + c->n; i += GCUDAI_PIECE) {
        const int64_t m = GCUDAI_MIN(c->i0 + c->n - i, GCUDAI_PIECE);
        char * y = gcudai_at(&p->region, c->i1, c->i2, c->i3) + (size_t) i * p->region.nb[0];
        gcudai_load(p->b.type, gcudai_at(&p->b, c->i1, c->i2, c->i3) + (size_t) i * p->b.nb[0], p->b.nb[0], m, add);
        gcudai_load(p->y.type, y, p->region.nb[0], m, sum);
        for (int64_t j = 0; j < m; ++j) { sum[j] += add[j]; }
        gcudai_store(p->y.type, y, p->region.nb[0], m, sum);
    }
}

static void gcudai_acc_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_set_args * p = &args->set;
    if (t->phase == 0) {
        gcudai_set_cpu(args, t);
        return;
    }
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_piece c = gcudai_piece_of(&p->b, GCUDAI_MOVE_ITEM, item);
        gcudai_acc_piece(p, &c);
    }
}

// >>op:repeat -----------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_repeat_4d(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    struct gcuda_tensor * src[] = { a };
    const int64_t ne[GCUDA_MAX_DIMS] = { ne0, ne1, ne2, ne3 };
    if (!gcudai_op_begin(ctx, GCUDA_OP_REPEAT, src, 1)) {
        return NULL;
    }
    return gcudai_op_finish(ctx, gcudai_op_new(ctx, GCUDA_OP_REPEAT, a->type, ne, src, 1));
}

struct gcuda_tensor * gcuda_repeat(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    struct gcuda_tensor * shape[] = { b };
    return gcudai_op_begin(ctx, GCUDA_OP_REPEAT, shape, 1) ? gcuda_repeat_4d(ctx, a, b->ne[0], b->ne[1], b->ne[2], b->ne[3]) : NULL;
}

static gcuda_status gcudai_repeat_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * x = y->src[0];
    GCUDAI_TRY(gcudai_want_plain(y, x));
    GCUDAI_TRY(gcudai_want_same_type(y, x, y));
    GCUDAI_TRY(gcudai_want_rows(y, y));
    GCUDAI_WANT(y, gcuda_can_repeat(x, y), "extents of the result must be multiples of the source's");
    return GCUDA_STATUS_SUCCESS;
}

static void gcudai_repeat_cpu(const union gcudai_args * args, const struct gcudai_task * t) { gcudai_pad_cpu(args, t); }

// >>op:repeat_back ------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_repeat_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    struct gcuda_tensor * src[] = { a }, * shape[] = { b };
    if (!gcudai_op_begin(ctx, GCUDA_OP_REPEAT_BACK, src, 1) || !gcudai_op_begin(ctx, GCUDA_OP_REPEAT_BACK, shape, 1)) {
        return NULL;
    }
    return gcudai_op_finish(ctx, gcudai_op_new(ctx, GCUDA_OP_REPEAT_BACK, a->type, b->ne, src, 1));
}

static gcuda_status gcudai_repeat_back_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * x = y->src[0];
    GCUDAI_TRY(gcudai_want_float(y, x));
    GCUDAI_TRY(gcudai_want_same_type(y, x, y));
    GCUDAI_WANT(y, gcuda_can_repeat(y, x), "extents of the source must be multiples of the result's");
    return GCUDA_STATUS_SUCCESS;
}

// The sources of a piece of a result row are runs of elements, one behind the other: parts of source rows that begin at the
// piece's first column. Groups of runs are summed apart, so that one long sum is work for several threads too.
#define GCUDAI_SUM_GROUP ((int64_t) 1 << 20) // elements
struct gcudai_sum {
    int64_t width, n_pieces;                          // columns of a piece, pieces of a result row
    int64_t run, runs_per_row, n_runs;                // elements of a run; runs of a source row, of a piece
    int64_t runs_per_group, n_groups;
    int64_t n_rep[GCUDA_MAX_DIMS];
};

static struct gcudai_sum gcudai_sum_of(const struct gcuda_array * x, const struct gcuda_array * y) {
    struct gcudai_sum s;
    const bool is_narrow = y->ne[0] <= GCUDAI_PIECE; // whole rows at once, many times over
    for (int d = 0; d < GCUDA_MAX_DIMS; ++d) { s.n_rep[d] = x->ne[d] / y->ne[d]; }
    s.width = GCUDAI_MIN(y->ne[0], GCUDAI_PIECE);
    s.n_pieces = gcudai_n_pieces(y->ne[0], s.width);
    s.run = is_narrow ? GCUDAI_MOVE_ITEM / s.width * s.width : s.width;
    s.runs_per_row = is_narrow ? gcudai_n_pieces(x->ne[0], s.run) : s.n_rep[0];
    s.n_runs = s.runs_per_row * s.n_rep[1] * s.n_rep[2] * s.n_rep[3];
    s.runs_per_group = GCUDAI_SUM_GROUP / s.run;
    s.n_groups = GCUDAI_MAX(gcudai_n_pieces(s.n_runs, s.runs_per_group), 1);
    return s;
}

static void gcudai_repeat_back_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    const struct gcuda_array a = gcudai_array(y->src[0]), b = gcudai_array(y);
    if (gcuda_is_empty(y)) {
        return;
    }
    const struct gcudai_sum s = gcudai_sum_of(&a, &b);
    const int64_t n_pieces = gcuda_nrows(y) * s.n_pieces;
    w->n_items[0] = n_pieces * s.n_groups;
    w->item_cost[0] = 100.0 + 4.0 * (double) GCUDAI_MIN(s.n_runs, s.runs_per_group) * (double) GCUDAI_MIN(s.run, a.ne[0]);
    if (s.n_groups > 1) {
        w->n_phases = 2;
        w->n_items[1] = n_pieces;
        w->item_cost[1] = 100.0 + (double) (s.n_groups * s.width);
        if (!gcudai_mul_size((size_t) w->n_items[0], (size_t) s.width * sizeof(double), &w->shared_bytes)) {
            w->shared_bytes = SIZE_MAX;
        }
    }
}

// Adds n elements, a multiple of width or one run of at most that, to the sums of their columns.
static void gcudai_sum_run(const struct gcuda_array * x, const char * p, int64_t n, int64_t width, double * sum) {
    float buf[GCUDAI_PIECE];
    const int64_t step = GCUDAI_PIECE / width * width;
    for (int64_t i = 0; i < n; i += step) {
        const int64_t m = GCUDAI_MIN(n - i, step);
        gcudai_load(x->type, p + (size_t) i * x->nb[0], x->nb[0], m, buf);
        for (int64_t j = 0; j < m; j += width) {
            for (int64_t k = 0; k < width; ++k) { sum[k] += (double) buf[j + k]; }
        }
    }
}

// Runs [q, end) of piece c.
static void gcudai_sum_runs(const struct gcuda_array * x, const struct gcuda_array * y, const struct gcudai_sum * s, const struct gcudai_piece * c, int64_t q, int64_t end, double * sum) {
    const bool is_narrow = y->ne[0] <= GCUDAI_PIECE;
    for (; q < end; ++q) {
        const int64_t k = q % s->runs_per_row, row = q / s->runs_per_row;
        const int64_t r1 = row % s->n_rep[1], r2 = row / s->n_rep[1] % s->n_rep[2], r3 = row / s->n_rep[1] / s->n_rep[2];
        const int64_t i0 = is_narrow ? k * s->run : k * y->ne[0] + c->i0, n = is_narrow ? GCUDAI_MIN(s->run, x->ne[0] - i0) : c->n;
        const char * p = gcudai_at(x, c->i1 + r1 * y->ne[1], c->i2 + r2 * y->ne[2], c->i3 + r3 * y->ne[3]) + (size_t) i0 * x->nb[0];
        gcudai_sum_run(x, p, n, c->n, sum);
    }
}

static void gcudai_sum_store(const struct gcuda_array * y, const struct gcudai_piece * c, const double * sum) {
    float buf[GCUDAI_PIECE];
    for (int64_t i = 0; i < c->n; ++i) { buf[i] = (float) sum[i]; }
    gcudai_store(y->type, gcudai_at(y, c->i1, c->i2, c->i3) + (size_t) c->i0 * y->nb[0], y->nb[0], c->n, buf);
}

static void gcudai_repeat_back_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_array * x = &args->cpy.x, * y = &args->cpy.y;
    const struct gcudai_sum s = gcudai_sum_of(x, y);
    double * parts = (double *) (void *) t->shared, sum[GCUDAI_PIECE];
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_piece c = gcudai_piece_of(y, s.width, t->phase == 0 ? item / s.n_groups : item);
        GCUDAI_ZERO(sum);
        if (t->phase == 0) {
            const int64_t q = item % s.n_groups * s.runs_per_group;
            gcudai_sum_runs(x, y, &s, &c, q, GCUDAI_MIN(q + s.runs_per_group, s.n_runs), sum);
        }
        for (int64_t g = 0; t->phase == 1 && g < s.n_groups; ++g) {
            for (int64_t i = 0; i < c.n; ++i) { sum[i] += parts[(item * s.n_groups + g) * s.width + i]; }
        }
        if (t->phase == 0 && s.n_groups > 1) {
            memcpy(parts + item * s.width, sum, (size_t) s.width * sizeof(double));
        } else {
            gcudai_sum_store(y, &c, sum);
        }
    }
}

// >>op:concat -----------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_concat(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int dim) {
    struct gcuda_tensor * src[] = { a, b };
    if (!gcudai_op_begin(ctx, GCUDA_OP_CONCAT, src, 2)) {
        return NULL;
    }
    int64_t ne[GCUDA_MAX_DIMS] = { a->ne[0], a->ne[1], a->ne[2], a->ne[3] };
    if (dim < 0 || dim >= GCUDA_MAX_DIMS || !gcudai_add_i64(a->ne[dim], b->ne[dim], &ne[dim])) {
        return gcudai_op_error(ctx, GCUDA_OP_CONCAT, "dimension %d, want 0 to 3, and a sum of extents below 2^63", dim);
    }
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_CONCAT, a->type, ne, src, 2);
    gcudai_set_param_i32(y, 0, dim);
    return gcudai_op_finish(ctx, y);
}

static gcuda_status gcudai_concat_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * a = y->src[0], * b = y->src[1];
    const int dim = gcudai_param_i32(y, 0);
    GCUDAI_WANT(y, dim >= 0 && dim < GCUDA_MAX_DIMS, "dimension is %d, want 0 to 3", dim);
    GCUDAI_TRY(gcudai_want_same_type(y, a, b));
    GCUDAI_TRY(gcudai_want_same_type(y, a, y));
    for (int d = 0; d < GCUDA_MAX_DIMS; ++d) {
        if (d == dim) {
            GCUDAI_WANT(y, y->ne[d] >= a->ne[d] && y->ne[d] - a->ne[d] == b->ne[d], "extent %d of the result must be %lld + %lld", d, (long long) a->ne[d], (long long) b->ne[d]);
        } else {
            GCUDAI_WANT(y, a->ne[d] == b->ne[d] && a->ne[d] == y->ne[d], "extents must be equal except in dimension %d", dim);
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

static void gcudai_concat_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->concat.a = gcudai_array(y->src[0]);
    args->concat.b = gcudai_array(y->src[1]);
    args->concat.y = gcudai_array(y);
    args->concat.dim = gcudai_param_i32(y, 0);
}

// Two copies into parts of y.
static void gcudai_concat_walk(const struct gcuda_concat_args * p, struct gcudai_walk * a, struct gcudai_walk * b) {
    struct gcuda_array part = p->y;
    const int64_t n = p->a.ne[p->dim] / (p->dim == 0 ? gcuda_blck_size(p->y.type) : 1);
    part.ne[p->dim] = p->a.ne[p->dim];
    gcudai_walk_init(a, &p->a, &part);
    part.ne[p->dim] = p->b.ne[p->dim];
    part.data = part.data && !(part.ne[p->dim] == 0) ? (char *) part.data + (size_t) n * part.nb[p->dim] : part.data;
    gcudai_walk_init(b, &p->b, &part);
}

static void gcudai_concat_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    union gcudai_args args;
    struct gcudai_walk a, b;
    gcudai_concat_args(y, &args);
    gcudai_concat_walk(&args.concat, &a, &b);
    w->n_items[0] = gcudai_walk_n_items(&a) + gcudai_walk_n_items(&b);
    w->item_cost[0] = GCUDAI_MAX(gcudai_walk_cost(&a), gcudai_walk_cost(&b));
}

static void gcudai_concat_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    struct gcudai_walk a, b;
    gcudai_concat_walk(&args->concat, &a, &b);
    const int64_t n = gcudai_walk_n_items(&a);
    gcudai_walk_run(&a, GCUDAI_MIN(t->i0, n), GCUDAI_MIN(t->i1, n));
    gcudai_walk_run(&b, GCUDAI_MAX(t->i0, n) - n, GCUDAI_MAX(t->i1, n) - n);
}

// >>op:pad --------------------------------------------------------------------------------------------
static struct gcuda_tensor * gcudai_pad_op(struct gcuda_context * ctx, struct gcuda_tensor * a, const int * lp, const int * rp, bool is_circular) {
    struct gcuda_tensor * src[] = { a };
    int64_t ne[GCUDA_MAX_DIMS];
    if (!gcudai_op_begin(ctx, GCUDA_OP_PAD, src, 1) || !gcudai_is_plain_source(ctx, GCUDA_OP_PAD, a)) {
        return NULL;
    }
    for (int d = 0; d < GCUDA_MAX_DIMS; ++d) {
        if (lp[d] < 0 || rp[d] < 0 || !gcudai_add_i64(a->ne[d], (int64_t) lp[d] + rp[d], &ne[d])) {
            return gcudai_op_error(ctx, GCUDA_OP_PAD, "%d before and %d behind dimension %d of '%s' [%lld, %lld, %lld, %lld], want at least 0", lp[d], rp[d], d, a->name,
                                   (long long) a->ne[0], (long long) a->ne[1], (long long) a->ne[2], (long long) a->ne[3]);
        }
    }
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_PAD, a->type, ne, src, 1);
    for (int d = 0; d < GCUDA_MAX_DIMS; ++d) {
        gcudai_set_param_i32(y, 2 * d, lp[d]);
        gcudai_set_param_i32(y, 2 * d + 1, rp[d]);
    }
    gcudai_set_param_i32(y, 8, is_circular);
    return gcudai_op_finish(ctx, y);
}

struct gcuda_tensor * gcuda_pad(struct gcuda_context * ctx, struct gcuda_tensor * a, int p0, int p1, int p2, int p3) {
    return gcuda_pad_ext(ctx, a, 0, p0, 0, p1, 0, p2, 0, p3);
}

struct gcuda_tensor * gcuda_pad_ext(struct gcuda_context * ctx, struct gcuda_tensor * a, int lp0, int rp0, int lp1, int rp1, int lp2, int rp2, int lp3, int rp3) {
    const int lp[GCUDA_MAX_DIMS] = { lp0, lp1, lp2, lp3 }, rp[GCUDA_MAX_DIMS] = { rp0, rp1, rp2, rp3 };
    return gcudai_pad_op(ctx, a, lp, rp, false);
}

struct gcuda_tensor * gcuda_pad_circular(struct gcuda_context * ctx, struct gcuda_tensor * a, int p0, int p1, int p2, int p3) {
    return gcuda_pad_ext_circular(ctx, a, 0, p0, 0, p1, 0, p2, 0, p3);
}

struct gcuda_tensor * gcuda_pad_ext_circular(struct gcuda_context * ctx, struct gcuda_tensor * a, int lp0, int rp0, int lp1, int rp1, int lp2, int rp2, int lp3, int rp3) {
    const int lp[GCUDA_MAX_DIMS] = { lp0, lp1, lp2, lp3 }, rp[GCUDA_MAX_DIMS] = { rp0, rp1, rp2, rp3 };
    return gcudai_pad_op(ctx, a, lp, rp, true);
}

static gcuda_status gcudai_pad_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * x = y->src[0];
    GCUDAI_TRY(gcudai_want_plain(y, x));
    GCUDAI_TRY(gcudai_want_same_type(y, x, y));
    GCUDAI_TRY(gcudai_want_rows(y, y));
    for (int d = 0; d < GCUDA_MAX_DIMS; ++d) {
        const int64_t lp = gcudai_param_i32(y, 2 * d), rp = gcudai_param_i32(y, 2 * d + 1);
        GCUDAI_WANT(y, lp >= 0 && rp >= 0, "%lld before and %lld behind dimension %d, want at least 0", (long long) lp, (long long) rp, d);
        GCUDAI_WANT(y, y->ne[d] - lp - rp == x->ne[d], "extent %d of the result must be %lld + %lld + %lld", d, (long long) lp, (long long) x->ne[d], (long long) rp);
        GCUDAI_WANT(y, gcudai_param_i32(y, 8) == 0 || x->ne[d] > 0 || gcuda_is_empty(y), "nothing to continue in dimension %d", d);
    }
    return GCUDA_STATUS_SUCCESS;
}

static void gcudai_pad_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    struct gcuda_pad_args * p = &args->pad;
    p->x = gcudai_array(y->src[0]);
    p->y = gcudai_array(y);
    p->is_circular = y->op != GCUDA_OP_PAD || gcudai_param_i32(y, 8) != 0;
    for (int d = 0; d < GCUDA_MAX_DIMS; ++d) { p->lp[d] = y->op == GCUDA_OP_PAD ? gcudai_param_i32(y, 2 * d) : y->op == GCUDA_OP_ROLL ? gcudai_param_i32(y, d) : 0; }
}

// Elements [i0, i0 + n) of an endless repetition of a row. What is there once is continued from the result itself.
static void gcudai_wrap_row(size_t size, const char * x, ptrdiff_t xs, int64_t ne0, char * y, int64_t i0, int64_t n) {
    const ptrdiff_t ys = (ptrdiff_t) size;
    const int64_t head = GCUDAI_MIN(n, ne0 - i0);
    int64_t done = GCUDAI_MIN(n, ne0);
    gcudai_move(size, x + i0 * xs, xs, y, ys, head);
    gcudai_move(size, x, xs, y + head * ys, ys, done - head);
    while (done < n) {
        const int64_t periods = done / ne0 * ne0, m = GCUDAI_MIN(n - done, periods);
        memcpy(y + done * ys, y + (done - periods) * ys, (size_t) m * size);
        done += m;
    }
}

static void gcudai_pad_piece(const struct gcuda_pad_args * p, const struct gcudai_piece * c) {
    const size_t size = gcuda_type_size(p->y.type);
    const ptrdiff_t xs = (ptrdiff_t) p->x.nb[0], ys = (ptrdiff_t) size;
    int64_t i[GCUDA_MAX_DIMS] = { c->i0 - p->lp[0], c->i1 - p->lp[1], c->i2 - p->lp[2], c->i3 - p->lp[3] };
    char * y = gcudai_at(&p->y, c->i1, c->i2, c->i3) + (size_t) c->i0 * size;
    bool is_inside = true;
    for (int d = 0; d < GCUDA_MAX_DIMS; ++d) {
        if (p->is_circular) {
            i[d] %= p->x.ne[d];
            i[d] += i[d] < 0 ? p->x.ne[d] : 0;
        }
        is_inside = is_inside && (d == 0 || (i[d] >= 0 && i[d] < p->x.ne[d]));
    }
    if (p->is_circular) {
        gcudai_wrap_row(size, gcudai_at(&p->x, i[1], i[2], i[3]), xs, p->x.ne[0], y, i[0], c->n);
        return;
    }
    const int64_t end = GCUDAI_MIN(c->n, GCUDAI_MAX(p->x.ne[0] - i[0], 0)), begin = GCUDAI_MIN(GCUDAI_MAX(-i[0], 0), end);
    if (!is_inside || begin == end) {
        gcudai_zero(size, y, ys, c->n);
        return;
    }
    gcudai_zero(size, y, ys, begin);
    gcudai_move(size, gcudai_at(&p->x, i[1], i[2], i[3]) + (i[0] + begin) * xs, xs, y + begin * ys, ys, end - begin);
    gcudai_zero(size, y + end * ys, ys, c->n - end);
}

static void gcudai_pad_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_piece c = gcudai_piece_of(&args->pad.y, GCUDAI_MOVE_ITEM, item);
        gcudai_pad_piece(&args->pad, &c);
    }
}

// >>op:pad_reflect_1d ---------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_pad_reflect_1d(struct gcuda_context * ctx, struct gcuda_tensor * a, int p0, int p1) {
    struct gcuda_tensor * src[] = { a };
    if (!gcudai_op_begin(ctx, GCUDA_OP_PAD_REFLECT_1D, src, 1) || !gcudai_is_plain_source(ctx, GCUDA_OP_PAD_REFLECT_1D, a)) {
        return NULL;
    }
    int64_t ne[GCUDA_MAX_DIMS] = { a->ne[0], a->ne[1], a->ne[2], a->ne[3] };
    if (p0 < 0 || p1 < 0 || !gcudai_add_i64(ne[0], (int64_t) p0 + p1, &ne[0])) {
        return gcudai_op_error(ctx, GCUDA_OP_PAD_REFLECT_1D, "%d before and %d behind, want at least 0", p0, p1);
    }
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_PAD_REFLECT_1D, a->type, ne, src, 1);
    gcudai_set_param_i32(y, 0, p0);
    gcudai_set_param_i32(y, 1, p1);
    return gcudai_op_finish(ctx, y);
}

static gcuda_status gcudai_pad_reflect_1d_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * x = y->src[0];
    const int64_t p0 = gcudai_param_i32(y, 0), p1 = gcudai_param_i32(y, 1);
    GCUDAI_TRY(gcudai_want_plain(y, x));
    GCUDAI_TRY(gcudai_want_same_type(y, x, y));
    GCUDAI_TRY(gcudai_want_rows(y, y));
    GCUDAI_WANT(y, p0 >= 0 && p1 >= 0 && ((p0 == 0 && p1 == 0) || GCUDAI_MAX(p0, p1) < x->ne[0]), "%lld before and %lld behind, want 0 to %lld", (long long) p0,
                (long long) p1, (long long) x->ne[0] - 1);
    GCUDAI_WANT(y, y->ne[0] - p0 - p1 == x->ne[0], "rows of the result must have %lld + %lld + %lld elements", (long long) p0, (long long) x->ne[0], (long long) p1);
    return gcudai_want_shape(y, y->ne[0], x->ne[1], x->ne[2], x->ne[3]);
}

static void gcudai_pad_reflect_1d_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->pad_reflect_1d.x = gcudai_array(y->src[0]);
    args->pad_reflect_1d.y = gcudai_array(y);
    args->pad_reflect_1d.p0 = gcudai_param_i32(y, 0);
}

static void gcudai_pad_reflect_1d_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_pad_reflect_1d_args * p = &args->pad_reflect_1d;
    const size_t size = gcuda_type_size(p->y.type);
    const ptrdiff_t xs = (ptrdiff_t) p->x.nb[0], ys = (ptrdiff_t) size;
    const int64_t ne0 = p->x.ne[0];
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_piece c = gcudai_piece_of(&p->y, GCUDAI_MOVE_ITEM, item);
        const char * x = gcudai_at(&p->x, c.i1, c.i2, c.i3);
        char * y = gcudai_at(&p->y, c.i1, c.i2, c.i3) + (size_t) c.i0 * size;
        const int64_t i = c.i0 - p->p0; // of x, as if it went on
        const int64_t a = GCUDAI_MIN(GCUDAI_MAX(-i, 0), c.n), b = GCUDAI_MIN(GCUDAI_MAX(ne0 - i, 0), c.n);
        if (a > 0) { gcudai_move(size, x - i * xs, -xs, y, ys, a); }
        if (b > a) { gcudai_move(size, x + (i + a) * xs, xs, y + a * ys, ys, b - a); }
        if (c.n > b) { gcudai_move(size, x + (2 * ne0 - 2 - i - b) * xs, -xs, y + b * ys, ys, c.n - b); }
    }
}

// >>op:roll -------------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_roll(struct gcuda_context * ctx, struct gcuda_tensor * a, int shift0, int shift1, int shift2, int shift3) {
    struct gcuda_tensor * src[] = { a };
    const int shift[GCUDA_MAX_DIMS] = { shift0, shift1, shift2, shift3 };
    if (!gcudai_op_begin(ctx, GCUDA_OP_ROLL, src, 1)) {
        return NULL;
    }
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_ROLL, a->type, a->ne, src, 1);
    for (int d = 0; d < GCUDA_MAX_DIMS; ++d) { gcudai_set_param_i32(y, d, shift[d]); }
    return gcudai_op_finish(ctx, y);
}

static gcuda_status gcudai_roll_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * x = y->src[0];
    GCUDAI_TRY(gcudai_want_plain(y, x));
    GCUDAI_TRY(gcudai_want_same_type(y, x, y));
    GCUDAI_TRY(gcudai_want_rows(y, y));
    GCUDAI_TRY(gcudai_want_like(y, x));
    for (int d = 0; d < GCUDA_MAX_DIMS; ++d) {
        const int64_t shift = gcudai_param_i32(y, d);
        GCUDAI_WANT(y, shift == 0 || (shift < x->ne[d] && -shift < x->ne[d]), "shift %lld of dimension %d, want less than %lld", (long long) shift, d, (long long) x->ne[d]);
    }
    return GCUDA_STATUS_SUCCESS;
}

static void gcudai_roll_cpu(const union gcudai_args * args, const struct gcudai_task * t) { gcudai_pad_cpu(args, t); }

// >>op:diag -------------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_diag(struct gcuda_context * ctx, struct gcuda_tensor * a) {
    struct gcuda_tensor * src[] = { a };
    if (!gcudai_op_begin(ctx, GCUDA_OP_DIAG, src, 1)) {
        return NULL;
    }
    const int64_t ne[GCUDA_MAX_DIMS] = { a->ne[0], a->ne[0], a->ne[2], a->ne[3] };
    return gcudai_op_finish(ctx, gcudai_op_new(ctx, GCUDA_OP_DIAG, a->type, ne, src, 1));
}

static gcuda_status gcudai_diag_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * x = y->src[0];
    GCUDAI_TRY(gcudai_want_plain(y, x));
    GCUDAI_TRY(gcudai_want_same_type(y, x, y));
    GCUDAI_WANT(y, x->ne[1] == 1, "the source has %lld rows, want 1", (long long) x->ne[1]);
    return gcudai_want_shape(y, x->ne[0], x->ne[0], x->ne[2], x->ne[3]);
}

#define GCUDAI_MASK_FAR (INT64_MAX / 4) // further than any diagonal

static void gcudai_mask_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    struct gcuda_mask_args * p = &args->mask;
    const int param = gcudai_param_i32(y, 0);
    p->x = gcudai_array(y->src[0]);
    p->y = gcudai_array(y);
    p->from = -GCUDAI_MASK_FAR;
    p->to = GCUDAI_MASK_FAR;
    p->value = y->op == GCUDA_OP_DIAG_MASK_INF ? -INFINITY : y->op == GCUDA_OP_FILL ? gcudai_param_f32(y, 0) : 0.0f;
    switch (y->op) {
        case GCUDA_OP_DIAG: // every row sees the only one
            p->x.ne[1] = y->ne[1];
            p->x.nb[1] = 0;
            p->from = 0;
            p->to = 1;
            break;
        case GCUDA_OP_DIAG_MASK_INF:
        case GCUDA_OP_DIAG_MASK_ZERO: p->to = (int64_t) param + 1; break;
        case GCUDA_OP_FILL: p->to = p->from; break;
        default: // TRI
            if (param == GCUDA_TRI_TYPE_UPPER_DIAG || param == GCUDA_TRI_TYPE_UPPER) {
                p->from = param == GCUDA_TRI_TYPE_UPPER ? 1 : 0;
            } else {
                p->to = param == GCUDA_TRI_TYPE_LOWER ? 0 : 1;
            }
            break;
    }
}

static void gcudai_mask_fill(const struct gcuda_mask_args * p, char * y, int64_t n) {
    const size_t size = gcuda_type_size(p->y.type);
    char value[8];
    if (p->value == 0.0f) {
        gcudai_zero(size, y, (ptrdiff_t) p->y.nb[0], n);
    } else {
        gcudai_store(p->y.type, value, size, 1, &p->value);
        gcudai_move(size, value, 0, y, (ptrdiff_t) p->y.nb[0], n);
    }
}

static void gcudai_mask_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_mask_args * p = &args->mask;
    const ptrdiff_t xs = (ptrdiff_t) p->x.nb[0], ys = (ptrdiff_t) p->y.nb[0];
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_piece c = gcudai_piece_of(&p->y, GCUDAI_MOVE_ITEM, item);
        const int64_t from = GCUDAI_MIN(GCUDAI_MAX(p->from + c.i1 - c.i0, 0), c.n);
        const int64_t to = GCUDAI_MIN(GCUDAI_MAX(p->to + c.i1 - c.i0, from), c.n);
        char * y = gcudai_at(&p->y, c.i1, c.i2, c.i3) + c.i0 * ys;
        if (from < to) { gcudai_move(gcuda_type_size(p->y.type), gcudai_at(&p->x, c.i1, c.i2, c.i3) + (c.i0 + from) * xs, xs, y + from * ys, ys, to - from); }
        if (from > 0) { gcudai_mask_fill(p, y, from); }
        if (to < c.n) { gcudai_mask_fill(p, y + to * ys, c.n - to); }
    }
}

static void gcudai_diag_cpu(const union gcudai_args * args, const struct gcudai_task * t) { gcudai_mask_cpu(args, t); }

// >>op:diag_mask_inf ----------------------------------------------------------------------------------
static struct gcuda_tensor * gcudai_diag_mask(struct gcuda_context * ctx, enum gcuda_op op, struct gcuda_tensor * a, int n_past, bool inplace) {
    struct gcuda_tensor * src[] = { a };
    if (!gcudai_op_begin(ctx, op, src, 1)) {
        return NULL;
    }
    struct gcuda_tensor * y = gcudai_op_like(ctx, op, a, src, 1, inplace);
    gcudai_set_param_i32(y, 0, n_past);
    return gcudai_op_finish(ctx, y);
}

struct gcuda_tensor * gcuda_diag_mask_inf(struct gcuda_context * ctx, struct gcuda_tensor * a, int n_past) { return gcudai_diag_mask(ctx, GCUDA_OP_DIAG_MASK_INF, a, n_past, false); }
struct gcuda_tensor * gcuda_diag_mask_inf_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, int n_past) { return gcudai_diag_mask(ctx, GCUDA_OP_DIAG_MASK_INF, a, n_past, true); }

// Floats of the same type and shape: also of tri and fill.
static gcuda_status gcudai_want_float_like(const struct gcuda_tensor * y) {
    GCUDAI_TRY(gcudai_want_float(y, y->src[0]));
    GCUDAI_TRY(gcudai_want_same_type(y, y->src[0], y));
    return gcudai_want_like(y, y->src[0]);
}

static gcuda_status gcudai_diag_mask_inf_check(const struct gcuda_tensor * y) {
    GCUDAI_TRY(gcudai_want_float_like(y));
    GCUDAI_WANT(y, gcudai_param_i32(y, 0) >= 0, "n_past is %d, want at least 0", (int) gcudai_param_i32(y, 0));
    return GCUDA_STATUS_SUCCESS;
}

static void gcudai_diag_mask_inf_cpu(const union gcudai_args * args, const struct gcudai_task * t) { gcudai_mask_cpu(args, t); }

// >>op:diag_mask_zero ---------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_diag_mask_zero(struct gcuda_context * ctx, struct gcuda_tensor * a, int n_past) { return gcudai_diag_mask(ctx, GCUDA_OP_DIAG_MASK_ZERO, a, n_past, false); }
struct gcuda_tensor * gcuda_diag_mask_zero_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, int n_past) { return gcudai_diag_mask(ctx, GCUDA_OP_DIAG_MASK_ZERO, a, n_past, true); }

static gcuda_status gcudai_diag_mask_zero_check(const struct gcuda_tensor * y) { return gcudai_diag_mask_inf_check(y); }
static void gcudai_diag_mask_zero_cpu(const union gcudai_args * args, const struct gcudai_task * t) { gcudai_mask_cpu(args, t); }

// >>op:tri --------------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_tri(struct gcuda_context * ctx, struct gcuda_tensor * a, enum gcuda_tri_type type) {
    struct gcuda_tensor * src[] = { a };
    if (!gcudai_op_begin(ctx, GCUDA_OP_TRI, src, 1)) {
        return NULL;
    }
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_TRI, a->type, a->ne, src, 1);
    gcudai_set_param_i32(y, 0, (int32_t) type);
    return gcudai_op_finish(ctx, y);
}

static gcuda_status gcudai_tri_check(const struct gcuda_tensor * y) {
    const int type = gcudai_param_i32(y, 0);
    GCUDAI_TRY(gcudai_want_float_like(y));
    GCUDAI_WANT(y, y->ne[0] == y->ne[1], "matrices must be square");
    GCUDAI_WANT(y, type >= GCUDA_TRI_TYPE_UPPER_DIAG && type <= GCUDA_TRI_TYPE_LOWER, "triangle type %d, want 0 to 3", type);
    return GCUDA_STATUS_SUCCESS;
}

static void gcudai_tri_cpu(const union gcudai_args * args, const struct gcudai_task * t) { gcudai_mask_cpu(args, t); }

// >>op:fill -------------------------------------------------------------------------------------------
static struct gcuda_tensor * gcudai_fill(struct gcuda_context * ctx, struct gcuda_tensor * a, float c, bool inplace) {
    struct gcuda_tensor * src[] = { a };
    if (!gcudai_op_begin(ctx, GCUDA_OP_FILL, src, 1)) {
        return NULL;
    }
    struct gcuda_tensor * y = gcudai_op_like(ctx, GCUDA_OP_FILL, a, src, 1, inplace);
    gcudai_set_param_f32(y, 0, c);
    return gcudai_op_finish(ctx, y);
}

struct gcuda_tensor * gcuda_fill(struct gcuda_context * ctx, struct gcuda_tensor * a, float c) { return gcudai_fill(ctx, a, c, false); }
struct gcuda_tensor * gcuda_fill_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, float c) { return gcudai_fill(ctx, a, c, true); }

static gcuda_status gcudai_fill_check(const struct gcuda_tensor * y) { return gcudai_want_float_like(y); }
static void gcudai_fill_cpu(const union gcudai_args * args, const struct gcudai_task * t) { gcudai_mask_cpu(args, t); }

// >>op:arange -----------------------------------------------------------------------------------------
// Number of elements, or -1: in F32, as the values are.
static int64_t gcudai_arange_count(float start, float stop, float step) {
    const float n = ceilf((stop - start) / step);
    return stop > start && step > 0.0f && n >= 1.0f && n < 4611686018427387904.0f ? (int64_t) n : -1;
}

struct gcuda_tensor * gcuda_arange(struct gcuda_context * ctx, float start, float stop, float step) {
    const int64_t ne[GCUDA_MAX_DIMS] = { gcudai_arange_count(start, stop, step), 1, 1, 1 };
    if (!gcudai_op_begin(ctx, GCUDA_OP_ARANGE, NULL, 0)) {
        return NULL;
    }
    if (ne[0] < 0) {
        return gcudai_op_error(ctx, GCUDA_OP_ARANGE, "from %g to %g by %g, want stop > start and step > 0", (double) start, (double) stop, (double) step);
    }
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_ARANGE, GCUDA_TYPE_F32, ne, NULL, 0);
    gcudai_set_param_f32(y, 0, start);
    gcudai_set_param_f32(y, 1, stop);
    gcudai_set_param_f32(y, 2, step);
    return gcudai_op_finish(ctx, y);
}

static gcuda_status gcudai_arange_check(const struct gcuda_tensor * y) {
    const int64_t n = gcudai_arange_count(gcudai_param_f32(y, 0), gcudai_param_f32(y, 1), gcudai_param_f32(y, 2));
    GCUDAI_TRY(gcudai_want_type(y, y, GCUDA_TYPE_F32));
    return gcudai_want_shape(y, n, 1, 1, 1);
}

static void gcudai_arange_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->arange.y = gcudai_array(y);
    args->arange.start = gcudai_param_f32(y, 0);
    args->arange.step = gcudai_param_f32(y, 2);
}

static void gcudai_arange_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_arange_args * p = &args->arange;
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_piece c = gcudai_piece_of(&p->y, GCUDAI_MOVE_ITEM, item);
        for (int64_t i = c.i0; i < c.i0 + c.n; ++i) {
            const float v = p->start + p->step * (float) i;
            memcpy((char *) p->y.data + (size_t) i * p->y.nb[0], &v, sizeof(v));
        }
    }
}

// >>op:timestep_embedding -----------------------------------------------------------------------------
struct gcuda_tensor * gcuda_timestep_embedding(struct gcuda_context * ctx, struct gcuda_tensor * timesteps, int dim, int max_period) {
    struct gcuda_tensor * src[] = { timesteps };
    if (!gcudai_op_begin(ctx, GCUDA_OP_TIMESTEP_EMBEDDING, src, 1)) {
        return NULL;
    }
    if (dim < 1) {
        return gcudai_op_error(ctx, GCUDA_OP_TIMESTEP_EMBEDDING, "dim is %d, want at least 1", dim);
    }
    const int64_t ne[GCUDA_MAX_DIMS] = { dim, timesteps->ne[0], 1, 1 };
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_TIMESTEP_EMBEDDING, GCUDA_TYPE_F32, ne, src, 1);
    gcudai_set_param_i32(y, 0, dim);
    gcudai_set_param_i32(y, 1, max_period);
    return gcudai_op_finish(ctx, y);
}

static gcuda_status gcudai_timestep_embedding_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * x = y->src[0];
    const int dim = gcudai_param_i32(y, 0), max_period = gcudai_param_i32(y, 1);
    GCUDAI_TRY(gcudai_want_type(y, x, GCUDA_TYPE_F32));
    GCUDAI_TRY(gcudai_want_type(y, y, GCUDA_TYPE_F32));
    GCUDAI_WANT(y, gcuda_is_vector(x), "'%s' must be a vector", x->name);
    GCUDAI_WANT(y, dim >= 1 && max_period >= 1, "dim is %d and max_period %d, want at least 1", dim, max_period);
    return gcudai_want_shape(y, dim, x->ne[0], 1, 1);
}

static void gcudai_timestep_embedding_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->timestep_embedding.x = gcudai_array(y->src[0]);
    args->timestep_embedding.y = gcudai_array(y);
    args->timestep_embedding.max_period = gcudai_param_i32(y, 1);
}

#define GCUDAI_TIMESTEP_ITEM ((int64_t) 4096)

static void gcudai_timestep_embedding_work(const struct gcuda_tensor * y, struct gcudai_work * w) { gcudai_split_rows(y, GCUDAI_TIMESTEP_ITEM, 150.0, w, 0); }

static void gcudai_timestep_embedding_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_timestep_embedding_args * p = &args->timestep_embedding;
    const int64_t half = p->y.ne[0] / 2;
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_piece c = gcudai_piece_of(&p->y, GCUDAI_TIMESTEP_ITEM, item);
        float step, v;
        memcpy(&step, (const char *) p->x.data + (size_t) c.i1 * p->x.nb[0], sizeof(step));
        for (int64_t i = c.i0; i < c.i0 + c.n; ++i) {
            const int64_t j = i < half ? i : i - half;
            const double angle = (double) step * exp(-log((double) p->max_period) * (double) j / (double) GCUDAI_MAX(half, 1));
            v = i < half ? (float) cos(angle) : i < 2 * half ? (float) sin(angle) : 0.0f;
            memcpy(gcudai_at(&p->y, c.i1, 0, 0) + (size_t) i * p->y.nb[0], &v, sizeof(v));
        }
    }
}

// ---------------- end of ops-a ----------------

// ---------------- ops-b: element-wise, norms, reductions, soft_max, rope, training ----------------

// -- element-wise work: items are pieces of rows, rows without gaps between them count as one --

#define GCUDAI_ITEM 4096 // elements of an item: whole blocks of every type, whole pieces
#define GCUDAI_STEP 8   // loops run in steps of this constant length: gcc vectorises those at -O2

// Elements [i, i + n) of a row as floats, n at most GCUDAI_PIECE. `pad` follows up to a multiple of GCUDAI_STEP.
static void gcudai_get(const struct gcuda_array * a, const char * row, int64_t i, int64_t n, float pad, float * out) {
    const int64_t block = gcudai_is_float(a->type) ? i : i / gcuda_blck_size(a->type);
    gcudai_load(a->type, row + (size_t) block * a->nb[0], a->nb[0], n, out);
    for (; n % GCUDAI_STEP != 0; ++n) {
        out[n] = pad;
    }
}

static void gcudai_put(const struct gcuda_array * a, char * row, int64_t i, int64_t n, const float * in) {
    const int64_t block = gcudai_is_float(a->type) ? i : i / gcuda_blck_size(a->type);
    gcudai_store(a->type, row + (size_t) block * a->nb[0], a->nb[0], n, in);
}

// Does dimension 1 of a follow dimension 0 without a gap, seen from a loop over y? A repeated element does.
static bool gcudai_can_fold(const struct gcuda_array * a, const struct gcuda_array * y) {
    if (a->ne[0] == 1 && a->ne[1] == 1) {
        return true;
    }
    const size_t row_bytes = (size_t) (a->ne[0] / gcuda_blck_size(a->type)) * a->nb[0];
    return a->ne[0] == y->ne[0] && a->ne[1] == y->ne[1] && (a->ne[1] == 1 || a->nb[1] == row_bytes);
}

static void gcudai_fold_once(struct gcuda_array * a) {
    a->ne[0] *= a->ne[1];
    a->ne[1] = a->ne[2];
    a->nb[1] = a->nb[2];
    a->ne[2] = a->ne[3];
    a->nb[2] = a->nb[3];
    a->ne[3] = 1;
}

// The arrays of an element-wise loop over y with as few rows as their strides allow.
static void gcudai_fold(struct gcuda_array * y, struct gcuda_array * src, int n_src) {
    for (int step = 1; step < GCUDA_MAX_DIMS; ++step) {
        bool is_ok = gcudai_can_fold(y, y);
        for (int i = 0; i < n_src; ++i) {
            is_ok = is_ok && gcudai_can_fold(&src[i], y);
        }
        if (!is_ok) {
            return;
        }
        for (int i = 0; i < n_src; ++i) {
            gcudai_fold_once(&src[i]);
        }
        gcudai_fold_once(y);
    }
}

static void gcudai_elements_of(const struct gcuda_array * y, struct gcudai_work * w) {
    w->n_items[0] = y->ne[1] * y->ne[2] * y->ne[3] * (y->ne[0] / GCUDAI_ITEM + (y->ne[0] % GCUDAI_ITEM != 0));
    w->item_cost[0] = 40.0 + 8.0 * (double) GCUDAI_MIN(y->ne[0], GCUDAI_ITEM);
}

// For operations whose args are folded from the result and all sources.
static void gcudai_elements_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    struct gcuda_array dst = gcudai_array(y), src[GCUDA_MAX_SRC];
    int n = 0;
    for (int i = 0; i < GCUDA_MAX_SRC; ++i) {
        if (y->src[i] != NULL) {
            src[n++] = gcudai_array(y->src[i]);
        }
    }
    gcudai_fold(&dst, src, n);
    gcudai_elements_of(&dst, w);
}

// For those whose rows stay apart.
static void gcudai_row_elements_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    const struct gcuda_array dst = gcudai_array(y);
    gcudai_elements_of(&dst, w);
}

struct gcudai_segment {
    int64_t row, i0, i1; // elements [i0, i1) of the row
};

static struct gcudai_segment gcudai_segment_at(const struct gcuda_array * y, int64_t item) {
    const int64_t per_row = (y->ne[0] - 1) / GCUDAI_ITEM + 1;
    struct gcudai_segment p;
    p.row = item / per_row;
    p.i0 = item % per_row * GCUDAI_ITEM;
    p.i1 = GCUDAI_MIN(p.i0 + GCUDAI_ITEM, y->ne[0]);
    return p;
}

#define GCUDAI_FOR_STEPS(i, n)                                       \
    for (int64_t i##_0 = 0; i##_0 < (n); i##_0 += GCUDAI_STEP)      \
        for (int64_t i = i##_0; i < i##_0 + GCUDAI_STEP; ++i)

// Result and first source: floats of one type and shape.
static gcuda_status gcudai_want_map(const struct gcuda_tensor * y) {
    GCUDAI_TRY(gcudai_want_float(y, y->src[0]));
    GCUDAI_TRY(gcudai_want_type(y, y, y->src[0]->type));
    return gcudai_want_like(y, y->src[0]);
}

// A node that turned out to be wrong after it was made.
static struct gcuda_tensor * gcudai_op_refuse(struct gcuda_context * ctx, struct gcuda_tensor * y, const char * problem) {
    gcudai_latch(ctx, gcudai_node_fail(GCUDA_STATUS_INVALID_ARGUMENT, y, "%s", problem));
    gcudai_object_pop(ctx, y);
    return NULL;
}

// >>op:add --------------------------------------------------------------------------------------------
static struct gcuda_tensor * gcudai_binary(struct gcuda_context * ctx, enum gcuda_op op, struct gcuda_tensor * a, struct gcuda_tensor * b, bool inplace) {
    struct gcuda_tensor * src[] = { a, b };
    if (!gcudai_op_begin(ctx, op, src, 2)) {
        return NULL;
    }
    return gcudai_op_finish(ctx, gcudai_op_like(ctx, op, src[0], src, 2, inplace));
}

struct gcuda_tensor * gcuda_add(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) { return gcudai_binary(ctx, GCUDA_OP_ADD, a, b, false); }
struct gcuda_tensor * gcuda_add_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) { return gcudai_binary(ctx, GCUDA_OP_ADD, a, b, true); }

struct gcuda_tensor * gcuda_add_cast(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, enum gcuda_type type) {
    struct gcuda_tensor * src[] = { a, b };
    if (!gcudai_op_begin(ctx, GCUDA_OP_ADD, src, 2)) {
        return NULL;
    }
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_ADD, type, a->ne, src, 2);
    if (y != NULL && !gcuda_can_repeat_rows(b, a)) {
        return gcudai_op_refuse(ctx, y, "add_cast: rows of b must be as long as those of a and repeat");
    }
    if (y != NULL && a->type == GCUDA_TYPE_F32) {
        return gcudai_op_refuse(ctx, y, "add_cast: a is f32 already, want f16, bf16 or a quantized type");
    }
    return gcudai_op_finish(ctx, y);
}

// Quantized rows are added to in blocks, so b may not repeat inside them.
static gcuda_status gcudai_want_quantized_sum(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * a = y->src[0];
    const struct gcuda_tensor * b = y->src[1];
    GCUDAI_WANT(y, y->op == GCUDA_OP_ADD || y->op == GCUDA_OP_ADD1, "only add takes a quantized source");
    GCUDAI_TRY(gcudai_want_type(y, b, GCUDA_TYPE_F32));
    GCUDAI_WANT(y, y->type == a->type || y->type == GCUDA_TYPE_F32, "result must be %s or f32", gcuda_type_name(a->type));
    GCUDAI_WANT(y, y->op == GCUDA_OP_ADD1 || gcuda_are_same_shape(a, b), "quantized: b must have the shape of a");
    GCUDAI_TRY(gcudai_want_rows(y, a));
    return gcudai_want_rows(y, y);
}

static gcuda_status gcudai_want_binary(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * a = y->src[0];
    const struct gcuda_tensor * b = y->src[1];
    if (gcuda_is_quantized(a->type)) {
        GCUDAI_TRY(gcudai_want_quantized_sum(y));
    } else {
        GCUDAI_TRY(gcudai_want_float(y, a));
        GCUDAI_TRY(gcudai_want_float(y, b));
        GCUDAI_TRY(gcudai_want_float(y, y));
    }
    GCUDAI_WANT(y, gcuda_can_repeat(b, a), "b does not repeat to the shape of a");
    return gcudai_want_like(y, a);
}

static gcuda_status gcudai_binary_can(const struct gcuda_tensor * y) {
    const struct gcuda_type_traits * a = gcuda_get_type_traits(y->src[0]->type);
    const struct gcuda_type_traits * t = gcuda_get_type_traits(y->type);
    GCUDAI_CAN(y, a->to_float != NULL && t->from_float_ref != NULL, "%s cannot be quantized here; gcuda_add_cast gives f32", t->type_name);
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_add_check(const struct gcuda_tensor * y) { return gcudai_want_binary(y); }

static void gcudai_binary_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    struct gcuda_array src[2];
    src[0] = gcudai_array(y->src[0]);
    src[1] = gcudai_array(y->src[1]);
    args->binary.y = gcudai_array(y);
    gcudai_fold(&args->binary.y, src, 2);
    args->binary.a = src[0];
    args->binary.b = src[1];
}

// Elements [i, i + n) of b's row, which is repeated along dimension 0.
static void gcudai_get_repeated(const struct gcuda_array * b, const char * row, int64_t i, int64_t n, float * out) {
    int64_t done = 0;
    while (done < n) {
        const int64_t at = (i + done) % b->ne[0], m = GCUDAI_MIN(n - done, b->ne[0] - at);
        gcudai_load(b->type, row + (size_t) at * b->nb[0], b->nb[0], m, out + done);
        done += m;
    }
    for (; n % GCUDAI_STEP != 0; ++n) {
        out[n] = 1.0f;
    }
}

static void gcudai_get_b(const struct gcuda_array * b, const char * row, int64_t i, int64_t n, float * out) {
    if (b->ne[0] > 1) {
        gcudai_get_repeated(b, row, i, n, out);
        return;
    }
    gcudai_load(b->type, row, b->nb[0], 1, out);
    for (int64_t k = 1; k < GCUDAI_PIECE; ++k) {
        out[k] = out[0];
    }
}

static const char * gcudai_row_repeated(const struct gcuda_array * b, const struct gcuda_array * y, int64_t r) {
    const int64_t i1 = r % y->ne[1], i2 = r / y->ne[1] % y->ne[2], i3 = r / y->ne[1] / y->ne[2];
    return gcudai_at(b, i1 % b->ne[1], i2 % b->ne[2], i3 % b->ne[3]);
}

typedef void (*gcudai_binary_fn)(float * GCUDAI_RESTRICT a, const float * GCUDAI_RESTRICT b, int64_t n); // into a

static void gcudai_binary_run(const union gcudai_args * args, const struct gcudai_task * t, gcudai_binary_fn fn) {
    const struct gcuda_binary_args * p = &args->binary;
    float a[GCUDAI_PIECE], b[GCUDAI_PIECE];
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_segment piece = gcudai_segment_at(&p->y, item);
        const char * row_a = gcudai_row(&p->a, piece.row);
        const char * row_b = gcudai_row_repeated(&p->b, &p->y, piece.row);
        char * row_y = gcudai_row(&p->y, piece.row);
        for (int64_t i = piece.i0; i < piece.i1; i += GCUDAI_PIECE) {
            const int64_t n = GCUDAI_MIN(piece.i1 - i, GCUDAI_PIECE);
            gcudai_get(&p->a, row_a, i, n, 1.0f, a);
            gcudai_get_b(&p->b, row_b, i, n, b);
            fn(a, b, n);
            gcudai_put(&p->y, row_y, i, n, a);
        }
    }
}

#define GCUDAI_BINARY(name, expr)                                                                                     \
    static void gcudai_binary_##name(float * GCUDAI_RESTRICT a, const float * GCUDAI_RESTRICT b, int64_t n) {         \
        GCUDAI_FOR_STEPS(i, n) {                                                                                      \
            const float x = a[i], y = b[i];                                                                           \
            a[i] = (expr);                                                                                            \
        }                                                                                                             \
    }                                                                                                                 \
    static void gcudai_##name##_cpu(const union gcudai_args * args, const struct gcudai_task * t) {                   \
        gcudai_binary_run(args, t, gcudai_binary_##name);                                                             \
    }
GCUDAI_BINARY(add, x + y)

// >>op:sub --------------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_sub(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) { return gcudai_binary(ctx, GCUDA_OP_SUB, a, b, false); }
struct gcuda_tensor * gcuda_sub_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) { return gcudai_binary(ctx, GCUDA_OP_SUB, a, b, true); }
static gcuda_status gcudai_sub_check(const struct gcuda_tensor * y) { return gcudai_want_binary(y); }
GCUDAI_BINARY(sub, x - y)

// >>op:mul --------------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_mul(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) { return gcudai_binary(ctx, GCUDA_OP_MUL, a, b, false); }
struct gcuda_tensor * gcuda_mul_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) { return gcudai_binary(ctx, GCUDA_OP_MUL, a, b, true); }
static gcuda_status gcudai_mul_check(const struct gcuda_tensor * y) { return gcudai_want_binary(y); }
GCUDAI_BINARY(mul, x * y)

// >>op:div --------------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_div(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) { return gcudai_binary(ctx, GCUDA_OP_DIV, a, b, false); }
struct gcuda_tensor * gcuda_div_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) { return gcudai_binary(ctx, GCUDA_OP_DIV, a, b, true); }
static gcuda_status gcudai_div_check(const struct gcuda_tensor * y) { return gcudai_want_binary(y); }
GCUDAI_BINARY(div, x / y)

// >>op:add1 -------------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_add1(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) { return gcudai_binary(ctx, GCUDA_OP_ADD1, a, b, false); }
struct gcuda_tensor * gcuda_add1_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) { return gcudai_binary(ctx, GCUDA_OP_ADD1, a, b, true); }

static gcuda_status gcudai_add1_check(const struct gcuda_tensor * y) {
    GCUDAI_WANT(y, gcuda_is_scalar(y->src[1]), "b must be one element");
    return gcudai_want_binary(y);
}

static void gcudai_add1_cpu(const union gcudai_args * args, const struct gcudai_task * t) { gcudai_binary_run(args, t, gcudai_binary_add); }

// >>op:add_id -----------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_add_id(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * ids) {
    struct gcuda_tensor * src[] = { a, b, ids };
    if (!gcudai_op_begin(ctx, GCUDA_OP_ADD_ID, src, 3)) {
        return NULL;
    }
    return gcudai_op_finish(ctx, gcudai_op_like(ctx, GCUDA_OP_ADD_ID, src[0], src, 3, false));
}

static gcuda_status gcudai_add_id_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * a = y->src[0];
    const struct gcuda_tensor * b = y->src[1];
    const struct gcuda_tensor * ids = y->src[2];
    GCUDAI_TRY(gcudai_want_map(y));
    GCUDAI_TRY(gcudai_want_float(y, b));
    GCUDAI_TRY(gcudai_want_type(y, ids, GCUDA_TYPE_I32));
    GCUDAI_WANT(y, gcuda_is_3d(a) && gcuda_is_matrix(b) && gcuda_is_matrix(ids), "want a of three dimensions, b and ids of two");
    GCUDAI_WANT(y, a->ne[0] == b->ne[0], "rows of a and b differ in length");
    GCUDAI_WANT(y, a->ne[1] == ids->ne[0] && a->ne[2] == ids->ne[1], "ids must be [%lld, %lld]", (long long) a->ne[1], (long long) a->ne[2]);
    return GCUDA_STATUS_SUCCESS;
}

static void gcudai_add_id_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->add_id.a = gcudai_array(y->src[0]);
    args->add_id.b = gcudai_array(y->src[1]);
    args->add_id.ids = gcudai_array(y->src[2]);
    args->add_id.y = gcudai_array(y);
}

static int32_t gcudai_read_i32(const char * p) {
    int32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static void gcudai_add_id_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_add_id_args * p = &args->add_id;
    float a[GCUDAI_PIECE], b[GCUDAI_PIECE];
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_segment piece = gcudai_segment_at(&p->y, item);
        const int64_t u = piece.row % p->y.ne[1], token = piece.row / p->y.ne[1];
        const int32_t id = gcudai_read_i32(gcudai_at(&p->ids, token, 0, 0) + (size_t) u * p->ids.nb[0]);
        const bool is_ok = id >= 0 && id < p->b.ne[1];
        if (!is_ok) {
            gcudai_bad_index(t, piece.row, id, p->b.ne[1]);
        }
        for (int64_t i = piece.i0; i < piece.i1; i += GCUDAI_PIECE) {
            const int64_t n = GCUDAI_MIN(piece.i1 - i, GCUDAI_PIECE);
            gcudai_get(&p->a, gcudai_row(&p->a, piece.row), i, n, 0.0f, a);
            if (is_ok) {
                gcudai_get(&p->b, gcudai_at(&p->b, id, 0, 0), i, n, 0.0f, b);
                gcudai_binary_add(a, b, n);
            }
            gcudai_put(&p->y, gcudai_row(&p->y, piece.row), i, n, a);
        }
    }
}

// >>op:unary ------------------------------------------------------------------------------------------
static float gcudai_softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
static float gcudai_sigmoid(float x) { // the exponential cannot overflow
    const float e = expf(-fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
static float gcudai_silu(float x) { return x * gcudai_sigmoid(x); }
static float gcudai_gelu_erf(float x) { return 0.5f * x * erfcf(x * -0.70710678118654752f); } // no cancellation left of 0
static float gcudai_gelu_quick(float x) { return x * gcudai_sigmoid(1.702f * x); }
static float gcudai_relu(float x) { return x > 0.0f ? x : 0.0f; }
static float gcudai_hardsigmoid(float x) {
    const float y = (x + 3.0f) / 6.0f;
    return y < 0.0f ? 0.0f : y > 1.0f ? 1.0f : y;
}

// (1 + tanh(u)) / 2 is the logistic function of 2u: nothing cancels for negative x.
static float gcudai_gelu(float x) { return x * gcudai_sigmoid(1.5957691216057307f * x * (1.0f + 0.044715f * x * x)); }

// p: op_params
static float gcudai_xielu(float x, const float * p) {
    return x > 0.0f ? p[2] * x * x + p[3] * x : (expm1f(x < p[4] ? x : p[4]) - x) * p[1] + p[3] * x;
}

typedef void (*gcudai_map_fn)(float * v, int64_t n, const float * p); // v[i] = f(v[i]), n rounded up to whole steps

#define GCUDAI_MAP(name, expr)                                                       \
    static void gcudai_map_##name(float * v, int64_t n, const float * p) {           \
        (void) p;                                                                    \
        GCUDAI_FOR_STEPS(i, n) {                                                     \
            const float x = v[i];                                                    \
            v[i] = (expr);                                                           \
        }                                                                            \
    }
GCUDAI_MAP(abs, fabsf(x))
GCUDAI_MAP(sgn, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f)
GCUDAI_MAP(neg, -x)
GCUDAI_MAP(step, x > 0.0f ? 1.0f : 0.0f)
GCUDAI_MAP(tanh, tanhf(x))
GCUDAI_MAP(elu, x > 0.0f ? x : expm1f(x))
GCUDAI_MAP(relu, gcudai_relu(x))
GCUDAI_MAP(sigmoid, gcudai_sigmoid(x))
GCUDAI_MAP(gelu, gcudai_gelu(x))
GCUDAI_MAP(gelu_quick, gcudai_gelu_quick(x))
GCUDAI_MAP(silu, gcudai_silu(x))
GCUDAI_MAP(hardswish, x * gcudai_hardsigmoid(x))
GCUDAI_MAP(hardsigmoid, gcudai_hardsigmoid(x))
GCUDAI_MAP(exp, expf(x))
GCUDAI_MAP(expm1, expm1f(x))
GCUDAI_MAP(softplus, gcudai_softplus(x))
GCUDAI_MAP(gelu_erf, gcudai_gelu_erf(x))
GCUDAI_MAP(xielu, gcudai_xielu(x, p))
GCUDAI_MAP(floor, floorf(x))
GCUDAI_MAP(ceil, ceilf(x))
GCUDAI_MAP(round, roundf(x))
GCUDAI_MAP(trunc, truncf(x))

static const gcudai_map_fn gcudai_unary_fns[GCUDA_UNARY_OP_COUNT] = { // in the order of GCUDA_UNARY_OPS
    gcudai_map_abs, gcudai_map_sgn, gcudai_map_neg, gcudai_map_step, gcudai_map_tanh, gcudai_map_elu, gcudai_map_relu,
    gcudai_map_sigmoid, gcudai_map_gelu, gcudai_map_gelu_quick, gcudai_map_silu, gcudai_map_hardswish, gcudai_map_hardsigmoid,
    gcudai_map_exp, gcudai_map_expm1, gcudai_map_softplus, gcudai_map_gelu_erf, gcudai_map_xielu, gcudai_map_floor,
    gcudai_map_ceil, gcudai_map_round, gcudai_map_trunc
};

static const char * const gcudai_unary_names[GCUDA_UNARY_OP_COUNT] = {
#define X(ID, value) #ID,
    GCUDA_UNARY_OPS(X)
#undef X
};

const char * gcuda_unary_op_name(enum gcuda_unary_op op) {
    return (int) op >= 0 && op < GCUDA_UNARY_OP_COUNT ? gcudai_unary_names[op] : "invalid";
}

enum gcuda_unary_op gcuda_get_unary_op(const struct gcuda_tensor * tensor) {
    const int32_t op = tensor != NULL && tensor->op == GCUDA_OP_UNARY ? gcudai_param_i32(tensor, 0) : -1;
    return op >= 0 && op < (int) GCUDA_UNARY_OP_COUNT ? (enum gcuda_unary_op) op : GCUDA_UNARY_OP_COUNT;
}

static struct gcuda_tensor * gcudai_unary(struct gcuda_context * ctx, struct gcuda_tensor * a, enum gcuda_unary_op op, bool inplace) {
    struct gcuda_tensor * src[] = { a };
    if (!gcudai_op_begin(ctx, GCUDA_OP_UNARY, src, 1)) {
        return NULL;
    }
    struct gcuda_tensor * y = gcudai_op_like(ctx, GCUDA_OP_UNARY, src[0], src, 1, inplace);
    gcudai_set_param_i32(y, 0, (int32_t) op);
    return gcudai_op_finish(ctx, y);
}

struct gcuda_tensor * gcuda_unary(struct gcuda_context * ctx, struct gcuda_tensor * a, enum gcuda_unary_op op) { return gcudai_unary(ctx, a, op, false); }
struct gcuda_tensor * gcuda_unary_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, enum gcuda_unary_op op) { return gcudai_unary(ctx, a, op, true); }
struct gcuda_tensor * gcuda_abs(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_ABS, false); }
struct gcuda_tensor * gcuda_abs_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_ABS, true); }
struct gcuda_tensor * gcuda_sgn(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_SGN, false); }
struct gcuda_tensor * gcuda_sgn_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_SGN, true); }
struct gcuda_tensor * gcuda_neg(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_NEG, false); }
struct gcuda_tensor * gcuda_neg_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_NEG, true); }
struct gcuda_tensor * gcuda_step(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_STEP, false); }
struct gcuda_tensor * gcuda_step_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_STEP, true); }
struct gcuda_tensor * gcuda_tanh(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_TANH, false); }
struct gcuda_tensor * gcuda_tanh_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_TANH, true); }
struct gcuda_tensor * gcuda_elu(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_ELU, false); }
struct gcuda_tensor * gcuda_elu_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_ELU, true); }
struct gcuda_tensor * gcuda_relu(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_RELU, false); }
struct gcuda_tensor * gcuda_relu_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_RELU, true); }
struct gcuda_tensor * gcuda_sigmoid(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_SIGMOID, false); }
struct gcuda_tensor * gcuda_sigmoid_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_SIGMOID, true); }
struct gcuda_tensor * gcuda_gelu(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_GELU, false); }
struct gcuda_tensor * gcuda_gelu_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_GELU, true); }
struct gcuda_tensor * gcuda_gelu_erf(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_GELU_ERF, false); }
struct gcuda_tensor * gcuda_gelu_erf_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_GELU_ERF, true); }
struct gcuda_tensor * gcuda_gelu_quick(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_GELU_QUICK, false); }
struct gcuda_tensor * gcuda_gelu_quick_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_GELU_QUICK, true); }
struct gcuda_tensor * gcuda_silu(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_SILU, false); }
struct gcuda_tensor * gcuda_silu_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_SILU, true); }
struct gcuda_tensor * gcuda_hardswish(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_HARDSWISH, false); }
struct gcuda_tensor * gcuda_hardsigmoid(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_HARDSIGMOID, false); }
struct gcuda_tensor * gcuda_exp(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_EXP, false); }
struct gcuda_tensor * gcuda_exp_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_EXP, true); }
struct gcuda_tensor * gcuda_expm1(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_EXPM1, false); }
struct gcuda_tensor * gcuda_expm1_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_EXPM1, true); }
struct gcuda_tensor * gcuda_softplus(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_SOFTPLUS, false); }
struct gcuda_tensor * gcuda_softplus_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_SOFTPLUS, true); }
struct gcuda_tensor * gcuda_floor(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_FLOOR, false); }
struct gcuda_tensor * gcuda_floor_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_FLOOR, true); }
struct gcuda_tensor * gcuda_ceil(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_CEIL, false); }
struct gcuda_tensor * gcuda_ceil_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_CEIL, true); }
struct gcuda_tensor * gcuda_round(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_ROUND, false); }
struct gcuda_tensor * gcuda_round_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_ROUND, true); }
struct gcuda_tensor * gcuda_trunc(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_TRUNC, false); }
struct gcuda_tensor * gcuda_trunc_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_unary(ctx, a, GCUDA_UNARY_OP_TRUNC, true); }

struct gcuda_tensor * gcuda_xielu(struct gcuda_context * ctx, struct gcuda_tensor * a, float alpha_n, float alpha_p, float beta, float eps) {
    struct gcuda_tensor * src[] = { a };
    if (!gcudai_op_begin(ctx, GCUDA_OP_UNARY, src, 1)) {
        return NULL;
    }
    struct gcuda_tensor * y = gcudai_op_like(ctx, GCUDA_OP_UNARY, src[0], src, 1, false);
    gcudai_set_param_i32(y, 0, (int32_t) GCUDA_UNARY_OP_XIELU);
    gcudai_set_param_f32(y, 1, beta + gcudai_softplus(alpha_n));
    gcudai_set_param_f32(y, 2, gcudai_softplus(alpha_p));
    gcudai_set_param_f32(y, 3, beta);
    gcudai_set_param_f32(y, 4, eps);
    return gcudai_op_finish(ctx, y);
}

static gcuda_status gcudai_unary_check(const struct gcuda_tensor * y) {
    GCUDAI_WANT(y, gcuda_get_unary_op(y) != GCUDA_UNARY_OP_COUNT, "unary operation %d does not exist", (int) gcudai_param_i32(y, 0));
    return gcudai_want_map(y);
}

// x and y of an element-wise operation with one source
static void gcudai_map_arrays(const struct gcuda_tensor * node, struct gcuda_array * x, struct gcuda_array * y) {
    *x = gcudai_array(node->src[0]);
    *y = gcudai_array(node);
    gcudai_fold(y, x, 1);
}

static void gcudai_unary_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    gcudai_map_arrays(y, &args->unary.x, &args->unary.y);
    args->unary.op = gcuda_get_unary_op(y);
    for (int i = 0; i < 5; ++i) {
        args->unary.p[i] = i > 0 ? gcudai_param_f32(y, i) : 0.0f;
    }
}

static void gcudai_map_run(const struct gcuda_array * x, const struct gcuda_array * y, const float * p, const struct gcudai_task * t, gcudai_map_fn fn) {
    float v[GCUDAI_PIECE];
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_segment piece = gcudai_segment_at(y, item);
        const char * row_x = gcudai_row(x, piece.row);
        char * row_y = gcudai_row(y, piece.row);
        for (int64_t i = piece.i0; i < piece.i1; i += GCUDAI_PIECE) {
            const int64_t n = GCUDAI_MIN(piece.i1 - i, GCUDAI_PIECE);
            gcudai_get(x, row_x, i, n, 1.0f, v);
            fn(v, n, p);
            gcudai_put(y, row_y, i, n, v);
        }
    }
}

static void gcudai_unary_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_unary_args * p = &args->unary;
    gcudai_map_run(&p->x, &p->y, p->p, t, gcudai_unary_fns[p->op]);
}

// Transcendental functions: about 5 ns an element.
static void gcudai_unary_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    gcudai_elements_work(y, w);
    w->item_cost[0] *= 2.0;
}

// Name of the sub-operation of a UNARY or GLU node, NULL for others.
static const char * gcudai_sub_op_name(const struct gcuda_tensor * y) {
    return y->op == GCUDA_OP_UNARY ? gcuda_unary_op_name(gcuda_get_unary_op(y)) : y->op == GCUDA_OP_GLU ? gcuda_glu_op_name(gcuda_get_glu_op(y)) : NULL;
}

// >>op:glu --------------------------------------------------------------------------------------------
const char * gcuda_glu_op_name(enum gcuda_glu_op op) {
    static const char * const names[] = { "REGLU", "GEGLU", "SWIGLU", "SWIGLU_OAI", "GEGLU_ERF", "GEGLU_QUICK" };
    return (int) op >= 0 && op < GCUDA_GLU_OP_COUNT ? names[op] : "invalid";
}

enum gcuda_glu_op gcuda_get_glu_op(const struct gcuda_tensor * tensor) {
    const int32_t op = tensor != NULL && tensor->op == GCUDA_OP_GLU ? gcudai_param_i32(tensor, 0) : -1;
    return op >= 0 && op < (int) GCUDA_GLU_OP_COUNT ? (enum gcuda_glu_op) op : GCUDA_GLU_OP_COUNT;
}

// b == NULL: the halves of a
static struct gcuda_tensor * gcudai_glu_node(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, bool swapped, enum gcuda_glu_op op) {
    struct gcuda_tensor * src[] = { a, b };
    const int64_t ne[GCUDA_MAX_DIMS] = { b ? a->ne[0] : a->ne[0] / 2, a->ne[1], a->ne[2], a->ne[3] };
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_GLU, a->type, ne, src, 2);
    gcudai_set_param_i32(y, 0, (int32_t) op);
    gcudai_set_param_i32(y, 1, swapped ? 1 : 0);
    return y;
}

struct gcuda_tensor * gcuda_glu(struct gcuda_context * ctx, struct gcuda_tensor * a, enum gcuda_glu_op op, bool swapped) {
    struct gcuda_tensor * src[] = { a };
    if (!gcudai_op_begin(ctx, GCUDA_OP_GLU, src, 1)) {
        return NULL;
    }
    return gcudai_op_finish(ctx, gcudai_glu_node(ctx, a, NULL, swapped, op));
}

// Two required sources where the registry knows of one.
static bool gcudai_glu_begin(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    struct gcuda_tensor * src[] = { a, b };
    if (!gcudai_op_begin(ctx, GCUDA_OP_GLU, src, 2)) {
        return false;
    }
    if (b == NULL && ctx->error == GCUDA_STATUS_SUCCESS) {
        gcudai_op_error(ctx, GCUDA_OP_GLU, "source 1 is NULL");
    }
    return b != NULL;
}

struct gcuda_tensor * gcuda_glu_split(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, enum gcuda_glu_op op) {
    return gcudai_glu_begin(ctx, a, b) ? gcudai_op_finish(ctx, gcudai_glu_node(ctx, a, b, false, op)) : NULL;
}

struct gcuda_tensor * gcuda_swiglu_oai(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, float alpha, float limit) {
    if (!gcudai_glu_begin(ctx, a, b)) {
        return NULL;
    }
    struct gcuda_tensor * y = gcudai_glu_node(ctx, a, b, false, GCUDA_GLU_OP_SWIGLU_OAI);
    gcudai_set_param_f32(y, 2, alpha);
    gcudai_set_param_f32(y, 3, limit);
    return gcudai_op_finish(ctx, y);
}

struct gcuda_tensor * gcuda_reglu(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcuda_glu(ctx, a, GCUDA_GLU_OP_REGLU, false); }
struct gcuda_tensor * gcuda_reglu_swapped(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcuda_glu(ctx, a, GCUDA_GLU_OP_REGLU, true); }
struct gcuda_tensor * gcuda_reglu_split(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) { return gcuda_glu_split(ctx, a, b, GCUDA_GLU_OP_REGLU); }
struct gcuda_tensor * gcuda_geglu(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcuda_glu(ctx, a, GCUDA_GLU_OP_GEGLU, false); }
struct gcuda_tensor * gcuda_geglu_swapped(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcuda_glu(ctx, a, GCUDA_GLU_OP_GEGLU, true); }
struct gcuda_tensor * gcuda_geglu_split(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) { return gcuda_glu_split(ctx, a, b, GCUDA_GLU_OP_GEGLU); }
struct gcuda_tensor * gcuda_swiglu(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcuda_glu(ctx, a, GCUDA_GLU_OP_SWIGLU, false); }
struct gcuda_tensor * gcuda_swiglu_swapped(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcuda_glu(ctx, a, GCUDA_GLU_OP_SWIGLU, true); }
struct gcuda_tensor * gcuda_swiglu_split(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) { return gcuda_glu_split(ctx, a, b, GCUDA_GLU_OP_SWIGLU); }
struct gcuda_tensor * gcuda_geglu_erf(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcuda_glu(ctx, a, GCUDA_GLU_OP_GEGLU_ERF, false); }
struct gcuda_tensor * gcuda_geglu_erf_swapped(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcuda_glu(ctx, a, GCUDA_GLU_OP_GEGLU_ERF, true); }
struct gcuda_tensor * gcuda_geglu_erf_split(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) { return gcuda_glu_split(ctx, a, b, GCUDA_GLU_OP_GEGLU_ERF); }
struct gcuda_tensor * gcuda_geglu_quick(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcuda_glu(ctx, a, GCUDA_GLU_OP_GEGLU_QUICK, false); }
struct gcuda_tensor * gcuda_geglu_quick_swapped(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcuda_glu(ctx, a, GCUDA_GLU_OP_GEGLU_QUICK, true); }
struct gcuda_tensor * gcuda_geglu_quick_split(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) { return gcuda_glu_split(ctx, a, b, GCUDA_GLU_OP_GEGLU_QUICK); }

static gcuda_status gcudai_glu_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * a = y->src[0];
    const struct gcuda_tensor * b = y->src[1];
    GCUDAI_WANT(y, gcuda_get_glu_op(y) != GCUDA_GLU_OP_COUNT, "GLU operation %d does not exist", (int) gcudai_param_i32(y, 0));
    GCUDAI_TRY(gcudai_want_float(y, a));
    GCUDAI_TRY(gcudai_want_rows(y, a));
    GCUDAI_TRY(gcudai_want_type(y, y, a->type));
    if (b == NULL) {
        return gcudai_want_shape(y, a->ne[0] / 2, a->ne[1], a->ne[2], a->ne[3]);
    }
    GCUDAI_TRY(gcudai_want_type(y, b, a->type));
    GCUDAI_TRY(gcudai_want_rows(y, b));
    GCUDAI_WANT(y, gcuda_are_same_shape(a, b), "a and b differ in shape");
    return gcudai_want_like(y, a);
}

static void gcudai_glu_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    struct gcuda_glu_args * p = &args->glu;
    p->y = gcudai_array(y);
    p->x = gcudai_array(y->src[0]);
    p->g = gcudai_array(y->src[1] ? y->src[1] : y->src[0]);
    p->x.ne[0] = p->g.ne[0] = y->ne[0];
    if (y->src[1] == NULL) { // halves of one row
        struct gcuda_array * second = gcudai_param_i32(y, 1) ? &p->x : &p->g;
        second->data = (char *) second->data + (size_t) y->ne[0] * second->nb[0];
    }
    p->op = gcuda_get_glu_op(y);
    p->alpha = gcudai_param_f32(y, 2);
    p->limit = gcudai_param_f32(y, 3);
}

static float gcudai_swiglu_oai(float x, float g, float alpha, float limit) {
    const float a = x < limit ? x : limit, b = g < -limit ? -limit : g > limit ? limit : g;
    return a * gcudai_sigmoid(alpha * a) * (b + 1.0f);
}

typedef void (*gcudai_glu_fn)(float * GCUDAI_RESTRICT v, const float * GCUDAI_RESTRICT w, int64_t n, const struct gcuda_glu_args * p);

#define GCUDAI_GLU(name, expr)                                                                                                                       \
    static void gcudai_glu_##name(float * GCUDAI_RESTRICT v, const float * GCUDAI_RESTRICT w, int64_t n, const struct gcuda_glu_args * p) {  \
        (void) p;                                                                                                                            \
        GCUDAI_FOR_STEPS(i, n) {                                                                                                             \
            const float x = v[i], g = w[i];                                                                                                  \
            v[i] = (expr);                                                                                                                   \
        }                                                                                                                                    \
    }
GCUDAI_GLU(reglu, x > 0.0f ? x * g : 0.0f)
GCUDAI_GLU(geglu, gcudai_gelu(x) * g)
GCUDAI_GLU(swiglu, gcudai_silu(x) * g)
GCUDAI_GLU(swiglu_oai, gcudai_swiglu_oai(x, g, p->alpha, p->limit))
GCUDAI_GLU(geglu_erf, gcudai_gelu_erf(x) * g)
GCUDAI_GLU(geglu_quick, gcudai_gelu_quick(x) * g)

static const gcudai_glu_fn gcudai_glu_fns[GCUDA_GLU_OP_COUNT] = { // in the order of enum gcuda_glu_op
    gcudai_glu_reglu, gcudai_glu_geglu, gcudai_glu_swiglu, gcudai_glu_swiglu_oai, gcudai_glu_geglu_erf, gcudai_glu_geglu_quick
};

static void gcudai_glu_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_glu_args * p = &args->glu;
    float x[GCUDAI_PIECE], g[GCUDAI_PIECE];
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_segment piece = gcudai_segment_at(&p->y, item);
        for (int64_t i = piece.i0; i < piece.i1; i += GCUDAI_PIECE) {
            const int64_t n = GCUDAI_MIN(piece.i1 - i, GCUDAI_PIECE);
            gcudai_get(&p->x, gcudai_row(&p->x, piece.row), i, n, 1.0f, x);
            gcudai_get(&p->g, gcudai_row(&p->g, piece.row), i, n, 1.0f, g);
            gcudai_glu_fns[p->op](x, g, n, p);
            gcudai_put(&p->y, gcudai_row(&p->y, piece.row), i, n, x);
        }
    }
}

// >>op:scale ------------------------------------------------------------------------------------------
// An element-wise operation with one source and up to two numbers
static struct gcuda_tensor * gcudai_map(struct gcuda_context * ctx, enum gcuda_op op, struct gcuda_tensor * a, float p0, float p1, bool inplace) {
    struct gcuda_tensor * src[] = { a };
    if (!gcudai_op_begin(ctx, op, src, 1)) {
        return NULL;
    }
    struct gcuda_tensor * y = gcudai_op_like(ctx, op, src[0], src, 1, inplace);
    gcudai_set_param_f32(y, 0, p0);
    gcudai_set_param_f32(y, 1, p1);
    return gcudai_op_finish(ctx, y);
}

struct gcuda_tensor * gcuda_scale(struct gcuda_context * ctx, struct gcuda_tensor * a, float s) { return gcudai_map(ctx, GCUDA_OP_SCALE, a, s, 0.0f, false); }
struct gcuda_tensor * gcuda_scale_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, float s) { return gcudai_map(ctx, GCUDA_OP_SCALE, a, s, 0.0f, true); }
struct gcuda_tensor * gcuda_scale_bias(struct gcuda_context * ctx, struct gcuda_tensor * a, float s, float b) { return gcudai_map(ctx, GCUDA_OP_SCALE, a, s, b, false); }
struct gcuda_tensor * gcuda_scale_bias_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, float s, float b) { return gcudai_map(ctx, GCUDA_OP_SCALE, a, s, b, true); }

static gcuda_status gcudai_scale_check(const struct gcuda_tensor * y) { return gcudai_want_map(y); }

static void gcudai_map_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    gcudai_map_arrays(y, &args->map.x, &args->map.y);
    args->map.p[0] = gcudai_param_f32(y, 0);
    args->map.p[1] = gcudai_param_f32(y, 1);
}

#define GCUDAI_MAP_OP(name, expr)                                                                        \
    GCUDAI_MAP(name, expr)                                                                               \
    static void gcudai_##name##_cpu(const union gcudai_args * args, const struct gcudai_task * t) {      \
        gcudai_map_run(&args->map.x, &args->map.y, args->map.p, t, gcudai_map_##name);                   \
    }
GCUDAI_MAP_OP(scale, p[0] * x + p[1])

// >>op:sqr --------------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_sqr(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_map(ctx, GCUDA_OP_SQR, a, 0.0f, 0.0f, false); }
struct gcuda_tensor * gcuda_sqr_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_map(ctx, GCUDA_OP_SQR, a, 0.0f, 0.0f, true); }
static gcuda_status gcudai_sqr_check(const struct gcuda_tensor * y) { return gcudai_want_map(y); }
GCUDAI_MAP_OP(sqr, x * x)

// >>op:sqrt -------------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_sqrt(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_map(ctx, GCUDA_OP_SQRT, a, 0.0f, 0.0f, false); }
struct gcuda_tensor * gcuda_sqrt_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_map(ctx, GCUDA_OP_SQRT, a, 0.0f, 0.0f, true); }
static gcuda_status gcudai_sqrt_check(const struct gcuda_tensor * y) { return gcudai_want_map(y); }
GCUDAI_MAP_OP(sqrt, sqrtf(x))

// >>op:sin --------------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_sin(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_map(ctx, GCUDA_OP_SIN, a, 0.0f, 0.0f, false); }
struct gcuda_tensor * gcuda_sin_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_map(ctx, GCUDA_OP_SIN, a, 0.0f, 0.0f, true); }
static gcuda_status gcudai_sin_check(const struct gcuda_tensor * y) { return gcudai_want_map(y); }
GCUDAI_MAP_OP(sin, sinf(x))

// >>op:cos --------------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_cos(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_map(ctx, GCUDA_OP_COS, a, 0.0f, 0.0f, false); }
struct gcuda_tensor * gcuda_cos_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_map(ctx, GCUDA_OP_COS, a, 0.0f, 0.0f, true); }
static gcuda_status gcudai_cos_check(const struct gcuda_tensor * y) { return gcudai_want_map(y); }
GCUDAI_MAP_OP(cos, cosf(x))

// >>op:log --------------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_log(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_map(ctx, GCUDA_OP_LOG, a, 0.0f, 0.0f, false); }
struct gcuda_tensor * gcuda_log_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_map(ctx, GCUDA_OP_LOG, a, 0.0f, 0.0f, true); }
static gcuda_status gcudai_log_check(const struct gcuda_tensor * y) { return gcudai_want_map(y); }
GCUDAI_MAP_OP(log, logf(x))

// >>op:clamp ------------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_clamp(struct gcuda_context * ctx, struct gcuda_tensor * a, float min, float max) { return gcudai_map(ctx, GCUDA_OP_CLAMP, a, min, max, true); }

static gcuda_status gcudai_clamp_check(const struct gcuda_tensor * y) {
    const float min = gcudai_param_f32(y, 0), max = gcudai_param_f32(y, 1);
    GCUDAI_WANT(y, min <= max, "min is %g, max %g, want min <= max", (double) min, (double) max);
    return gcudai_want_map(y);
}

GCUDAI_MAP_OP(clamp, x < p[0] ? p[0] : x > p[1] ? p[1] : x)

// >>op:leaky_relu -------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_leaky_relu(struct gcuda_context * ctx, struct gcuda_tensor * a, float negative_slope, bool inplace) {
    return gcudai_map(ctx, GCUDA_OP_LEAKY_RELU, a, negative_slope, 0.0f, inplace);
}
static gcuda_status gcudai_leaky_relu_check(const struct gcuda_tensor * y) { return gcudai_want_map(y); }
GCUDAI_MAP_OP(leaky_relu, x > 0.0f ? x : p[0] * x)

// >>op:silu_back --------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_silu_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) { return gcudai_binary(ctx, GCUDA_OP_SILU_BACK, a, b, false); }

static gcuda_status gcudai_silu_back_check(const struct gcuda_tensor * y) {
    GCUDAI_TRY(gcudai_want_map(y));
    GCUDAI_TRY(gcudai_want_float(y, y->src[1]));
    GCUDAI_WANT(y, gcuda_are_same_shape(y->src[0], y->src[1]), "a and b differ in shape");
    return GCUDA_STATUS_SUCCESS;
}

static float gcudai_silu_derivative(float x) {
    const float s = gcudai_sigmoid(x);
    return s * (1.0f + x * (1.0f - s));
}
GCUDAI_BINARY(silu_back, x * gcudai_silu_derivative(y))

// -- row work: a row is one item, a long one is cut into parts whose sums meet between phases --

#define GCUDAI_SPAN 32768 // elements of a part: below 0.2 ms for anything done here
#define GCUDAI_N_SLOTS 2

struct gcudai_span {
    int64_t row, i0, i1;   // elements [i0, i1) of the row
    int64_t part, n_parts; // of the row
    double * slots;        // what part k found in phase s: slots[s * n_parts + k]
};
typedef void (*gcudai_span_fn)(const union gcudai_args * args, const struct gcudai_span * s, int phase);

static int64_t gcudai_n_parts(int64_t len, int64_t span) { return len <= span ? 1 : (len - 1) / span + 1; }

static void gcudai_spans_of(struct gcudai_work * w, int64_t n_rows, int64_t len, int64_t span, int n_phases, double item_cost) {
    const int64_t n_parts = gcudai_n_parts(len, span);
    const size_t slots_bytes = (size_t) n_parts * GCUDAI_N_SLOTS * sizeof(double);
    w->n_phases = n_parts == 1 ? 1 : n_phases;
    for (int i = 0; i < w->n_phases; ++i) {
        w->n_items[i] = n_rows * n_parts;
        w->item_cost[i] = n_parts == 1 ? item_cost * (double) n_phases : item_cost;
    }
    if (n_parts > 1 && !gcudai_mul_size(slots_bytes, (size_t) n_rows, &w->shared_bytes)) {
        w->shared_bytes = SIZE_MAX;
    }
}

static void gcudai_spans_run(const union gcudai_args * args, const struct gcudai_task * t, int64_t len, int64_t span, int n_phases, gcudai_span_fn fn) {
    const int64_t n_parts = gcudai_n_parts(len, span);
    double own[GCUDAI_N_SLOTS];
    struct gcudai_span s;
    s.n_parts = n_parts;
    for (int64_t item = t->i0; item < t->i1; ++item) {
        s.row = item / n_parts;
        s.part = item % n_parts;
        s.i0 = s.part * span;
        s.i1 = GCUDAI_MIN(s.i0 + span, len);
        s.slots = n_parts == 1 ? own : (double *) (void *) t->shared + s.row * n_parts * GCUDAI_N_SLOTS;
        for (int phase = n_parts == 1 ? 0 : t->phase; phase < (n_parts == 1 ? n_phases : t->phase + 1); ++phase) {
            fn(args, &s, phase);
        }
    }
}

static void gcudai_slot_set(const struct gcudai_span * s, int slot, double v) { s->slots[slot * s->n_parts + s->part] = v; }

// In the order of the parts, so the same for any number of threads.
static double gcudai_slot_sum(const struct gcudai_span * s, int slot) {
    double sum = 0.0;
    for (int64_t k = 0; k < s->n_parts; ++k) {
        sum += s->slots[slot * s->n_parts + k];
    }
    return sum;
}

static double gcudai_slot_max(const struct gcudai_span * s, int slot) {
    double max = s->slots[slot * s->n_parts];
    for (int64_t k = 1; k < s->n_parts; ++k) {
        const double v = s->slots[slot * s->n_parts + k];
        max = v > max || v != v ? v : max; // NaN stays
    }
    return max;
}

// Rows of the result, as long as the longer of result and first source.
static void gcudai_row_spans(const struct gcuda_tensor * y, struct gcudai_work * w, int n_phases) {
    const int64_t len = GCUDAI_MAX(y->ne[0], y->src[0]->ne[0]);
    gcudai_spans_of(w, gcuda_nrows(y), len, GCUDAI_SPAN, n_phases, 40.0 + 6.0 * (double) GCUDAI_MIN(len, GCUDAI_SPAN));
}
static void gcudai_spans2_work(const struct gcuda_tensor * y, struct gcudai_work * w) { gcudai_row_spans(y, w, 2); }
static void gcudai_spans3_work(const struct gcuda_tensor * y, struct gcudai_work * w) { gcudai_row_spans(y, w, 3); }

// Sum of (v - shift)^power, power 1 or 2; eight independent sums so that none waits for the one before.
static double gcudai_sum_powers(const float * v, int64_t n, double shift, int power) {
    double acc[GCUDAI_STEP] = { 0.0 };
    const int64_t n_steps = n - n % GCUDAI_STEP;
    if (power == 1) {
        for (int64_t i = 0; i < n_steps; i += GCUDAI_STEP) {
            for (int k = 0; k < GCUDAI_STEP; ++k) {
                acc[k] += (double) v[i + k] - shift;
            }
        }
    } else {
        for (int64_t i = 0; i < n_steps; i += GCUDAI_STEP) {
            for (int k = 0; k < GCUDAI_STEP; ++k) {
                acc[k] += ((double) v[i + k] - shift) * ((double) v[i + k] - shift);
            }
        }
    }
    for (int64_t i = n_steps; i < n; ++i) {
        acc[i - n_steps] += power == 1 ? (double) v[i] - shift : ((double) v[i] - shift) * ((double) v[i] - shift);
    }
    return ((acc[0] + acc[4]) + (acc[1] + acc[5])) + ((acc[2] + acc[6]) + (acc[3] + acc[7]));
}

static double gcudai_sum_span(const struct gcuda_array * x, const char * row, int64_t i0, int64_t i1, double shift, int power) {
    float buf[GCUDAI_PIECE];
    double sum = 0.0;
    for (int64_t i = i0; i < i1; i += GCUDAI_PIECE) {
        const int64_t n = GCUDAI_MIN(i1 - i, GCUDAI_PIECE);
        gcudai_get(x, row, i, n, 0.0f, buf);
        sum += gcudai_sum_powers(buf, n, shift, power);
    }
    return sum;
}

static double gcudai_dot_span(const struct gcuda_array * a, const char * row_a, const struct gcuda_array * b, const char * row_b, int64_t i0, int64_t i1) {
    float v[GCUDAI_PIECE], w[GCUDAI_PIECE];
    double acc[GCUDAI_STEP] = { 0.0 };
    for (int64_t i = i0; i < i1; i += GCUDAI_PIECE) {
        const int64_t n = GCUDAI_MIN(i1 - i, GCUDAI_PIECE);
        gcudai_get(a, row_a, i, n, 0.0f, v);
        gcudai_get(b, row_b, i, n, 0.0f, w);
        for (int64_t j = 0; j < n; j += GCUDAI_STEP) {
            for (int k = 0; k < GCUDAI_STEP; ++k) {
                acc[k] += (double) v[j + k] * (double) w[j + k];
            }
        }
    }
    return ((acc[0] + acc[4]) + (acc[1] + acc[5])) + ((acc[2] + acc[6]) + (acc[3] + acc[7]));
}

// y = (x - shift) * scale
static void gcudai_affine_span(const struct gcuda_array * x, const struct gcuda_array * y, const struct gcudai_span * s, int64_t row, double shift, double scale) {
    const char * from = gcudai_row(x, row);
    char * to = gcudai_row(y, row);
    float buf[GCUDAI_PIECE];
    for (int64_t i = s->i0; i < s->i1; i += GCUDAI_PIECE) {
        const int64_t n = GCUDAI_MIN(s->i1 - i, GCUDAI_PIECE);
        gcudai_get(x, from, i, n, 0.0f, buf);
        GCUDAI_FOR_STEPS(j, n) {
            buf[j] = (float) (((double) buf[j] - shift) * scale);
        }
        gcudai_put(y, to, i, n, buf);
    }
}

// >>op:norm -------------------------------------------------------------------------------------------
static struct gcuda_tensor * gcudai_norm(struct gcuda_context * ctx, enum gcuda_op op, struct gcuda_tensor * a, float eps, bool inplace) {
    return gcudai_map(ctx, op, a, eps, 0.0f, inplace);
}

struct gcuda_tensor * gcuda_norm(struct gcuda_context * ctx, struct gcuda_tensor * a, float eps) { return gcudai_norm(ctx, GCUDA_OP_NORM, a, eps, false); }
struct gcuda_tensor * gcuda_norm_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, float eps) { return gcudai_norm(ctx, GCUDA_OP_NORM, a, eps, true); }

static gcuda_status gcudai_want_norm(const struct gcuda_tensor * y, float eps) {
    GCUDAI_TRY(gcudai_want_map(y));
    GCUDAI_TRY(gcudai_want_rows(y, y->src[0]));
    GCUDAI_TRY(gcudai_want_rows(y, y));
    GCUDAI_WANT(y, eps >= 0.0f, "eps is %g, want >= 0", (double) eps);
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_norm_check(const struct gcuda_tensor * y) { return gcudai_want_norm(y, gcudai_param_f32(y, 0)); }

static void gcudai_norm_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->norm.x = gcudai_array(y->src[0]);
    args->norm.y = gcudai_array(y);
    args->norm.eps = gcudai_param_f32(y, 0);
}

// Two passes: E[x^2] - E[x]^2 cancels where the mean is far above the spread.
static void gcudai_norm_span(const union gcudai_args * args, const struct gcudai_span * s, int phase) {
    const struct gcuda_norm_args * p = &args->norm;
    const double n = (double) p->x.ne[0], mean = phase > 0 ? gcudai_slot_sum(s, 0) / n : 0.0;
    if (phase < 2) {
        gcudai_slot_set(s, phase, gcudai_sum_span(&p->x, gcudai_row(&p->x, s->row), s->i0, s->i1, mean, phase + 1));
        return;
    }
    gcudai_affine_span(&p->x, &p->y, s, s->row, mean, 1.0 / sqrt(gcudai_slot_sum(s, 1) / n + (double) p->eps));
}

static void gcudai_norm_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    gcudai_spans_run(args, t, args->norm.x.ne[0], GCUDAI_SPAN, 3, gcudai_norm_span);
}

// >>op:rms_norm ---------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_rms_norm(struct gcuda_context * ctx, struct gcuda_tensor * a, float eps) { return gcudai_norm(ctx, GCUDA_OP_RMS_NORM, a, eps, false); }
struct gcuda_tensor * gcuda_rms_norm_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, float eps) { return gcudai_norm(ctx, GCUDA_OP_RMS_NORM, a, eps, true); }

static gcuda_status gcudai_rms_norm_check(const struct gcuda_tensor * y) { return gcudai_norm_check(y); }

// The sum is in double: this is the reference that kernels are held to.
static void gcudai_rms_norm_span(const union gcudai_args * args, const struct gcudai_span * s, int phase) {
    const struct gcuda_norm_args * p = &args->norm;
    if (phase == 0) {
        gcudai_slot_set(s, 0, gcudai_sum_span(&p->x, gcudai_row(&p->x, s->row), s->i0, s->i1, 0.0, 2));
        return;
    }
    gcudai_affine_span(&p->x, &p->y, s, s->row, 0.0, 1.0 / sqrt(gcudai_slot_sum(s, 0) / (double) p->x.ne[0] + (double) p->eps));
}

static void gcudai_rms_norm_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    gcudai_spans_run(args, t, args->norm.x.ne[0], GCUDAI_SPAN, 2, gcudai_rms_norm_span);
}

// >>op:l2_norm ----------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_l2_norm(struct gcuda_context * ctx, struct gcuda_tensor * a, float eps) { return gcudai_norm(ctx, GCUDA_OP_L2_NORM, a, eps, false); }
struct gcuda_tensor * gcuda_l2_norm_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, float eps) { return gcudai_norm(ctx, GCUDA_OP_L2_NORM, a, eps, true); }

static gcuda_status gcudai_l2_norm_check(const struct gcuda_tensor * y) { return gcudai_norm_check(y); }

static void gcudai_l2_norm_span(const union gcudai_args * args, const struct gcudai_span * s, int phase) {
    const struct gcuda_norm_args * p = &args->norm;
    if (phase == 0) {
        gcudai_slot_set(s, 0, gcudai_sum_span(&p->x, gcudai_row(&p->x, s->row), s->i0, s->i1, 0.0, 2));
        return;
    }
    const double length = sqrt(gcudai_slot_sum(s, 0)), eps = (double) p->eps;
    gcudai_affine_span(&p->x, &p->y, s, s->row, 0.0, 1.0 / (length < eps ? eps : length));
}

static void gcudai_l2_norm_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    gcudai_spans_run(args, t, args->norm.x.ne[0], GCUDAI_SPAN, 2, gcudai_l2_norm_span);
}

// >>op:rms_norm_back ----------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_rms_norm_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, float eps) {
    struct gcuda_tensor * src[] = { a, b };
    if (!gcudai_op_begin(ctx, GCUDA_OP_RMS_NORM_BACK, src, 2)) {
        return NULL;
    }
    struct gcuda_tensor * y = gcudai_op_like(ctx, GCUDA_OP_RMS_NORM_BACK, src[0], src, 2, false);
    gcudai_set_param_f32(y, 0, eps);
    return gcudai_op_finish(ctx, y);
}

static gcuda_status gcudai_rms_norm_back_check(const struct gcuda_tensor * y) {
    GCUDAI_TRY(gcudai_want_norm(y, gcudai_param_f32(y, 0)));
    GCUDAI_TRY(gcudai_want_float(y, y->src[1]));
    GCUDAI_TRY(gcudai_want_rows(y, y->src[1]));
    GCUDAI_WANT(y, gcuda_are_same_shape(y->src[0], y->src[1]), "a and b differ in shape");
    return GCUDA_STATUS_SUCCESS;
}

static void gcudai_rms_norm_back_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->rms_norm_back.dy = gcudai_array(y->src[0]);
    args->rms_norm_back.x = gcudai_array(y->src[1]);
    args->rms_norm_back.dx = gcudai_array(y);
    args->rms_norm_back.eps = gcudai_param_f32(y, 0);
}

// dx = (dy - x k) scale
static void gcudai_rms_norm_back_write(const struct gcuda_rms_norm_back_args * p, const struct gcudai_span * s, double k, double scale) {
    float dy[GCUDAI_PIECE], x[GCUDAI_PIECE];
    for (int64_t i = s->i0; i < s->i1; i += GCUDAI_PIECE) {
        const int64_t n = GCUDAI_MIN(s->i1 - i, GCUDAI_PIECE);
        gcudai_get(&p->dy, gcudai_row(&p->dy, s->row), i, n, 0.0f, dy);
        gcudai_get(&p->x, gcudai_row(&p->x, s->row), i, n, 0.0f, x);
        GCUDAI_FOR_STEPS(j, n) {
            dy[j] = (float) (((double) dy[j] - (double) x[j] * k) * scale);
        }
        gcudai_put(&p->dx, gcudai_row(&p->dx, s->row), i, n, dy);
    }
}

static void gcudai_rms_norm_back_span(const union gcudai_args * args, const struct gcudai_span * s, int phase) {
    const struct gcuda_rms_norm_back_args * p = &args->rms_norm_back;
    const char * x = gcudai_row(&p->x, s->row);
    if (phase == 0) {
        gcudai_slot_set(s, 0, gcudai_sum_span(&p->x, x, s->i0, s->i1, 0.0, 2));
        gcudai_slot_set(s, 1, gcudai_dot_span(&p->x, x, &p->dy, gcudai_row(&p->dy, s->row), s->i0, s->i1));
        return;
    }
    const double n = (double) p->x.ne[0], eps = (double) p->eps, xx = gcudai_slot_sum(s, 0);
    gcudai_rms_norm_back_write(p, s, gcudai_slot_sum(s, 1) / (xx + n * eps), 1.0 / sqrt(xx / n + eps));
}

static void gcudai_rms_norm_back_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    gcudai_spans_run(args, t, args->rms_norm_back.x.ne[0], GCUDAI_SPAN, 2, gcudai_rms_norm_back_span);
}

// >>op:group_norm -------------------------------------------------------------------------------------
static struct gcuda_tensor * gcudai_group_norm(struct gcuda_context * ctx, struct gcuda_tensor * a, int n_groups, float eps, bool inplace) {
    struct gcuda_tensor * src[] = { a };
    if (!gcudai_op_begin(ctx, GCUDA_OP_GROUP_NORM, src, 1)) {
        return NULL;
    }
    struct gcuda_tensor * y = gcudai_op_like(ctx, GCUDA_OP_GROUP_NORM, src[0], src, 1, inplace);
    gcudai_set_param_i32(y, 0, n_groups);
    gcudai_set_param_f32(y, 1, eps);
    return gcudai_op_finish(ctx, y);
}

struct gcuda_tensor * gcuda_group_norm(struct gcuda_context * ctx, struct gcuda_tensor * a, int n_groups, float eps) { return gcudai_group_norm(ctx, a, n_groups, eps, false); }
struct gcuda_tensor * gcuda_group_norm_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, int n_groups, float eps) { return gcudai_group_norm(ctx, a, n_groups, eps, true); }

static gcuda_status gcudai_group_norm_check(const struct gcuda_tensor * y) {
    GCUDAI_WANT(y, gcudai_param_i32(y, 0) >= 1, "n_groups is %d, want at least 1", (int) gcudai_param_i32(y, 0));
    return gcudai_want_norm(y, gcudai_param_f32(y, 1));
}

static void gcudai_group_norm_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->group_norm.x = gcudai_array(y->src[0]);
    args->group_norm.y = gcudai_array(y);
    args->group_norm.n_groups = gcudai_param_i32(y, 0);
    args->group_norm.eps = gcudai_param_f32(y, 1);
}

// A group of an image is what a row is elsewhere, and its rows are the elements.
struct gcudai_groups {
    int64_t channels, per_image; // of a full group; groups that are not empty
    int64_t rows, rows_per_part;
};

static struct gcudai_groups gcudai_groups_of(const int64_t * ne, int n_groups) {
    struct gcudai_groups g;
    g.channels = ne[2] / n_groups + (ne[2] % n_groups != 0);
    g.per_image = g.channels > 0 ? (ne[2] - 1) / g.channels + 1 : 0;
    g.rows = ne[1] * g.channels;
    g.rows_per_part = GCUDAI_MAX(GCUDAI_SPAN / GCUDAI_MAX(ne[0], 1), 1);
    return g;
}

static void gcudai_group_norm_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    const struct gcudai_groups g = gcudai_groups_of(y->ne, gcudai_param_i32(y, 0));
    const double n_rows = (double) GCUDAI_MIN(g.rows, g.rows_per_part);
    gcudai_spans_of(w, g.per_image * y->ne[3], g.rows, g.rows_per_part, 3, 40.0 + n_rows * (20.0 + 6.0 * (double) y->ne[0]));
}

static void gcudai_group_norm_span(const union gcudai_args * args, const struct gcudai_span * s, int phase) {
    const struct gcuda_group_norm_args * p = &args->group_norm;
    const struct gcudai_groups g = gcudai_groups_of(p->x.ne, p->n_groups);
    const int64_t image = s->row / g.per_image, first = s->row % g.per_image * g.channels; // channel
    const int64_t n_rows = GCUDAI_MIN(g.channels, p->x.ne[2] - first) * p->x.ne[1];
    const int64_t row0 = (image * p->x.ne[2] + first) * p->x.ne[1];
    const double n = (double) n_rows * (double) p->x.ne[0], mean = phase > 0 ? gcudai_slot_sum(s, 0) / n : 0.0;
    const double scale = phase == 2 ? 1.0 / sqrt(gcudai_slot_sum(s, 1) / n + (double) p->eps) : 0.0;
    struct gcudai_span whole = *s;
    whole.i0 = 0;
    whole.i1 = p->x.ne[0];
    double sum = 0.0;
    for (int64_t r = row0 + s->i0; r < row0 + GCUDAI_MIN(s->i1, n_rows); ++r) {
        if (phase < 2) {
            sum += gcudai_sum_span(&p->x, gcudai_row(&p->x, r), 0, p->x.ne[0], mean, phase + 1);
        } else {
            gcudai_affine_span(&p->x, &p->y, &whole, r, mean, scale);
        }
    }
    if (phase < 2) {
        gcudai_slot_set(s, phase, sum);
    }
}

static void gcudai_group_norm_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcudai_groups g = gcudai_groups_of(args->group_norm.x.ne, args->group_norm.n_groups);
    gcudai_spans_run(args, t, g.rows, g.rows_per_part, 3, gcudai_group_norm_span);
}

// >>op:sum --------------------------------------------------------------------------------------------
// A tensor reduced to one element: items are groups of short rows or parts of long ones, of about GCUDAI_SPAN elements;
// a second phase adds what they found, in order.
struct gcudai_total {
    int64_t parts_per_row, n_parts, parts_per_item, n_items;
};

static struct gcudai_total gcudai_total_of(const struct gcuda_array * x) {
    struct gcudai_total a;
    const int64_t n_rows = x->ne[1] * x->ne[2] * x->ne[3];
    a.parts_per_row = gcudai_n_parts(x->ne[0], GCUDAI_SPAN);
    a.n_parts = x->ne[0] > 0 ? n_rows * a.parts_per_row : 0;
    a.parts_per_item = x->ne[0] > 0 && x->ne[0] < GCUDAI_SPAN ? GCUDAI_SPAN / x->ne[0] : 1;
    a.n_items = a.n_parts > 0 ? (a.n_parts - 1) / a.parts_per_item + 1 : 0;
    return a;
}

static void gcudai_total_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    struct gcuda_array x = gcudai_array(y->src[0]), other = gcudai_array(y->src[1]);
    gcudai_fold(&x, &other, y->src[1] != NULL);
    const struct gcudai_total a = gcudai_total_of(&x);
    w->n_phases = 2;
    w->n_items[0] = a.n_items;
    w->item_cost[0] = 6.0 * GCUDAI_SPAN;
    w->n_items[1] = 1;
    w->item_cost[1] = 4.0 * (double) a.n_items;
    if (!gcudai_mul_size((size_t) a.n_items, sizeof(double), &w->shared_bytes)) {
        w->shared_bytes = SIZE_MAX;
    }
}

// Elements of part k: a row, or a stretch of one.
static struct gcudai_segment gcudai_total_part(const struct gcudai_total * a, int64_t k, int64_t ne0) {
    struct gcudai_segment p;
    p.row = k / a->parts_per_row;
    p.i0 = k % a->parts_per_row * GCUDAI_SPAN;
    p.i1 = GCUDAI_MIN(p.i0 + GCUDAI_SPAN, ne0);
    return p;
}

// A reduction: one node from one source.
static struct gcuda_tensor * gcudai_reduce(struct gcuda_context * ctx, enum gcuda_op op, struct gcuda_tensor * a, enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    struct gcuda_tensor * src[] = { a };
    const int64_t ne[GCUDA_MAX_DIMS] = { ne0, ne1, ne2, ne3 };
    return gcudai_op_finish(ctx, gcudai_op_new(ctx, op, type, ne, src, 1));
}

static bool gcudai_reduce_begin(struct gcuda_context * ctx, enum gcuda_op op, struct gcuda_tensor * a) {
    struct gcuda_tensor * src[] = { a };
    return gcudai_op_begin(ctx, op, src, 1);
}

struct gcuda_tensor * gcuda_sum(struct gcuda_context * ctx, struct gcuda_tensor * a) {
    return gcudai_reduce_begin(ctx, GCUDA_OP_SUM, a) ? gcudai_reduce(ctx, GCUDA_OP_SUM, a, a->type, 1, 1, 1, 1) : NULL;
}

static gcuda_status gcudai_sum_check(const struct gcuda_tensor * y) {
    GCUDAI_TRY(gcudai_want_float(y, y->src[0]));
    GCUDAI_TRY(gcudai_want_type(y, y, y->src[0]->type));
    return gcudai_want_shape(y, 1, 1, 1, 1);
}

static void gcudai_sum_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->sum.x = gcudai_array(y->src[0]);
    args->sum.y = gcudai_array(y);
    gcudai_fold(&args->sum.x, NULL, 0);
}

static void gcudai_put_one(const struct gcuda_array * y, char * row, double value) {
    const float v = (float) value;
    gcudai_store(y->type, row, y->nb[0], 1, &v);
}

static void gcudai_sum_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_array * x = &args->sum.x;
    const struct gcudai_total a = gcudai_total_of(x);
    double * found = (double *) (void *) t->shared;
    double sum = 0.0;
    if (t->phase == 1) {
        for (int64_t i = 0; i < a.n_items; ++i) {
            sum += found[i];
        }
        gcudai_put_one(&args->sum.y, (char *) args->sum.y.data, sum);
        return;
    }
    for (int64_t item = t->i0; item < t->i1; ++item) {
        sum = 0.0;
        for (int64_t k = item * a.parts_per_item; k < GCUDAI_MIN((item + 1) * a.parts_per_item, a.n_parts); ++k) {
            const struct gcudai_segment part = gcudai_total_part(&a, k, x->ne[0]);
            sum += gcudai_sum_span(x, gcudai_row(x, part.row), part.i0, part.i1, 0.0, 1);
        }
        found[item] = sum;
    }
}

// >>op:sum_rows ---------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_sum_rows(struct gcuda_context * ctx, struct gcuda_tensor * a) {
    return gcudai_reduce_begin(ctx, GCUDA_OP_SUM_ROWS, a) ? gcudai_reduce(ctx, GCUDA_OP_SUM_ROWS, a, a->type, 1, a->ne[1], a->ne[2], a->ne[3]) : NULL;
}

static gcuda_status gcudai_want_row_sums(const struct gcuda_tensor * y, enum gcuda_type type) {
    const struct gcuda_tensor * a = y->src[0];
    GCUDAI_TRY(gcudai_want_float(y, a));
    GCUDAI_TRY(gcudai_want_type(y, y, type));
    return gcudai_want_shape(y, 1, a->ne[1], a->ne[2], a->ne[3]);
}

static void gcudai_reduce_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->reduce.x = gcudai_array(y->src[0]);
    args->reduce.y = gcudai_array(y);
}

static gcuda_status gcudai_sum_rows_check(const struct gcuda_tensor * y) { return gcudai_want_row_sums(y, y->src[0]->type); }

static void gcudai_row_sums_span(const struct gcuda_reduce_args * p, const struct gcudai_span * s, int phase, double divisor) {
    if (phase == 0) {
        gcudai_slot_set(s, 0, gcudai_sum_span(&p->x, gcudai_row(&p->x, s->row), s->i0, s->i1, 0.0, 1));
    } else if (s->part == 0) {
        gcudai_put_one(&p->y, gcudai_row(&p->y, s->row), gcudai_slot_sum(s, 0) / divisor);
    }
}

static void gcudai_sum_rows_span(const union gcudai_args * args, const struct gcudai_span * s, int phase) { gcudai_row_sums_span(&args->reduce, s, phase, 1.0); }
static void gcudai_sum_rows_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    gcudai_spans_run(args, t, args->reduce.x.ne[0], GCUDAI_SPAN, 2, gcudai_sum_rows_span);
}

// >>op:mean -------------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_mean(struct gcuda_context * ctx, struct gcuda_tensor * a) {
    return gcudai_reduce_begin(ctx, GCUDA_OP_MEAN, a) ? gcudai_reduce(ctx, GCUDA_OP_MEAN, a, GCUDA_TYPE_F32, 1, a->ne[1], a->ne[2], a->ne[3]) : NULL;
}

static gcuda_status gcudai_mean_check(const struct gcuda_tensor * y) { return gcudai_want_row_sums(y, GCUDA_TYPE_F32); }
static void gcudai_mean_span(const union gcudai_args * args, const struct gcudai_span * s, int phase) {
    gcudai_row_sums_span(&args->reduce, s, phase, (double) args->reduce.x.ne[0]);
}
static void gcudai_mean_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    gcudai_spans_run(args, t, args->reduce.x.ne[0], GCUDAI_SPAN, 2, gcudai_mean_span);
}

// >>op:cumsum -----------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_cumsum(struct gcuda_context * ctx, struct gcuda_tensor * a) {
    return gcudai_reduce_begin(ctx, GCUDA_OP_CUMSUM, a) ? gcudai_reduce(ctx, GCUDA_OP_CUMSUM, a, a->type, a->ne[0], a->ne[1], a->ne[2], a->ne[3]) : NULL;
}

static gcuda_status gcudai_cumsum_check(const struct gcuda_tensor * y) { return gcudai_want_map(y); }

static void gcudai_cumsum_span(const union gcudai_args * args, const struct gcudai_span * s, int phase) {
    const struct gcuda_reduce_args * p = &args->reduce;
    const char * x = gcudai_row(&p->x, s->row);
    if (phase == 0) {
        if (s->n_parts > 1) {
            gcudai_slot_set(s, 0, gcudai_sum_span(&p->x, x, s->i0, s->i1, 0.0, 1));
        }
        return;
    }
    float buf[GCUDAI_PIECE];
    double sum = 0.0;
    for (int64_t k = 0; k < s->part; ++k) {
        sum += s->slots[k];
    }
    for (int64_t i = s->i0; i < s->i1; i += GCUDAI_PIECE) {
        const int64_t n = GCUDAI_MIN(s->i1 - i, GCUDAI_PIECE);
        gcudai_get(&p->x, x, i, n, 0.0f, buf);
        for (int64_t j = 0; j < n; ++j) {
            sum += (double) buf[j];
            buf[j] = (float) sum;
        }
        gcudai_put(&p->y, gcudai_row(&p->y, s->row), i, n, buf);
    }
}

static void gcudai_cumsum_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    gcudai_spans_run(args, t, args->reduce.x.ne[0], GCUDAI_SPAN, 2, gcudai_cumsum_span);
}

// >>op:argmax -----------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_argmax(struct gcuda_context * ctx, struct gcuda_tensor * a) {
    return gcudai_reduce_begin(ctx, GCUDA_OP_ARGMAX, a) ? gcudai_reduce(ctx, GCUDA_OP_ARGMAX, a, GCUDA_TYPE_I32, a->ne[1], 1, 1, 1) : NULL;
}

static gcuda_status gcudai_argmax_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * a = y->src[0];
    GCUDAI_TRY(gcudai_want_float(y, a));
    GCUDAI_WANT(y, gcuda_is_matrix(a), "want a matrix");
    GCUDAI_TRY(gcudai_want_rows(y, a));
    GCUDAI_WANT(y, a->ne[0] <= INT32_MAX, "rows are longer than an index counts");
    GCUDAI_TRY(gcudai_want_type(y, y, GCUDA_TYPE_I32));
    return gcudai_want_shape(y, a->ne[1], 1, 1, 1);
}

static void gcudai_argmax_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    const struct gcuda_tensor * a = y->src[0];
    gcudai_spans_of(w, a->ne[1], a->ne[0], GCUDAI_SPAN, 2, 40.0 + 4.0 * (double) GCUDAI_MIN(a->ne[0], GCUDAI_SPAN));
}

static void gcudai_argmax_span(const union gcudai_args * args, const struct gcudai_span * s, int phase) {
    const struct gcuda_array * x = &args->reduce.x;
    const char * row = gcudai_row(x, s->row);
    float buf[GCUDAI_PIECE], best = -INFINITY;
    int64_t at = s->i1 > s->i0 ? s->i0 : -1;
    if (phase == 0) {
        for (int64_t i = s->i0; i < s->i1; i += GCUDAI_PIECE) {
            const int64_t n = GCUDAI_MIN(s->i1 - i, GCUDAI_PIECE);
            gcudai_get(x, row, i, n, 0.0f, buf);
            for (int64_t j = 0; j < n; ++j) {
                at = buf[j] >= best ? i + j : at;
                best = buf[j] >= best ? buf[j] : best;
            }
        }
        gcudai_slot_set(s, 0, (double) at);
        gcudai_slot_set(s, 1, (double) best);
        return;
    }
    double max = -INFINITY;
    int32_t index = (int32_t) s->slots[0];
    for (int64_t k = 0; k < s->n_parts; ++k) {
        if (s->slots[s->n_parts + k] >= max) {
            max = s->slots[s->n_parts + k];
            index = (int32_t) s->slots[k];
        }
    }
    if (s->part == 0) {
        memcpy((char *) args->reduce.y.data + (size_t) s->row * args->reduce.y.nb[0], &index, sizeof(index));
    }
}

static void gcudai_argmax_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    gcudai_spans_run(args, t, args->reduce.x.ne[0], GCUDAI_SPAN, 2, gcudai_argmax_span);
}

// >>op:count_equal ------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_count_equal(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    struct gcuda_tensor * src[] = { a, b };
    const int64_t ne[GCUDA_MAX_DIMS] = { 1, 1, 1, 1 };
    if (!gcudai_op_begin(ctx, GCUDA_OP_COUNT_EQUAL, src, 2)) {
        return NULL;
    }
    return gcudai_op_finish(ctx, gcudai_op_new(ctx, GCUDA_OP_COUNT_EQUAL, GCUDA_TYPE_I64, ne, src, 2));
}

static gcuda_status gcudai_count_equal_check(const struct gcuda_tensor * y) {
    GCUDAI_TRY(gcudai_want_type(y, y->src[0], GCUDA_TYPE_I32));
    GCUDAI_TRY(gcudai_want_type(y, y->src[1], GCUDA_TYPE_I32));
    GCUDAI_TRY(gcudai_want_type(y, y, GCUDA_TYPE_I64));
    GCUDAI_WANT(y, gcuda_are_same_shape(y->src[0], y->src[1]), "a and b differ in shape");
    return gcudai_want_shape(y, 1, 1, 1, 1);
}

static void gcudai_count_equal_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->count_equal.a = gcudai_array(y->src[0]);
    args->count_equal.b = gcudai_array(y->src[1]);
    args->count_equal.y = gcudai_array(y);
    gcudai_fold(&args->count_equal.a, &args->count_equal.b, 1);
}

static int64_t gcudai_count_part(const struct gcuda_count_equal_args * p, const struct gcudai_segment * part) {
    const char * a = gcudai_row(&p->a, part->row);
    const char * b = gcudai_row(&p->b, part->row);
    int64_t n = 0;
    for (int64_t i = part->i0; i < part->i1; ++i) {
        n += gcudai_read_i32(a + (size_t) i * p->a.nb[0]) == gcudai_read_i32(b + (size_t) i * p->b.nb[0]);
    }
    return n;
}

static void gcudai_count_equal_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_count_equal_args * p = &args->count_equal;
    const struct gcudai_total a = gcudai_total_of(&p->a);
    int64_t * found = (int64_t *) (void *) t->shared;
    int64_t n = 0;
    if (t->phase == 1) {
        for (int64_t i = 0; i < a.n_items; ++i) {
            n += found[i];
        }
        memcpy(p->y.data, &n, sizeof(n));
        return;
    }
    for (int64_t item = t->i0; item < t->i1; ++item) {
        n = 0;
        for (int64_t k = item * a.parts_per_item; k < GCUDAI_MIN((item + 1) * a.parts_per_item, a.n_parts); ++k) {
            const struct gcudai_segment part = gcudai_total_part(&a, k, p->a.ne[0]);
            n += gcudai_count_part(p, &part);
        }
        found[item] = n;
    }
}

// >>op:argsort ----------------------------------------------------------------------------------------
// A float and its index as one number that sorts like the float: sign and exponent first, as integers. Negative floats
// are complemented, so is everything for a descending order. No comparison ever meets a NaN.
static uint64_t gcudai_sort_key(float x, int64_t index, bool is_descending) {
    const uint32_t bits = gcudai_f32_bits(x);
    const uint32_t ordered = (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
    return (uint64_t) (is_descending ? ~ordered : ordered) << 32 | (uint64_t) index;
}

static int32_t gcudai_sort_index(uint64_t key) { return (int32_t) (key & 0x7fffffffu); }

// Elements [i0, i1) of a row as keys.
static void gcudai_sort_keys(const struct gcuda_sort_args * p, int64_t r, int64_t i0, int64_t i1, bool is_descending, uint64_t * keys) {
    const char * row = gcudai_row(&p->x, r);
    float buf[GCUDAI_PIECE];
    for (int64_t i = i0; i < i1; i += GCUDAI_PIECE) {
        const int64_t n = GCUDAI_MIN(i1 - i, GCUDAI_PIECE);
        gcudai_get(&p->x, row, i, n, 0.0f, buf);
        for (int64_t j = 0; j < n; ++j) {
            keys[i - i0 + j] = gcudai_sort_key(buf[j], i + j, is_descending);
        }
    }
}

static void gcudai_insertion_sort(uint64_t * v, int64_t n) {
    for (int64_t i = 1; i < n; ++i) {
        const uint64_t x = v[i];
        int64_t j = i;
        for (; j > 0 && v[j - 1] > x; --j) {
            v[j] = v[j - 1];
        }
        v[j] = x;
    }
}

static void gcudai_merge(const uint64_t * a, int64_t n_a, const uint64_t * b, int64_t n_b, uint64_t * out) {
    while (n_a > 0 && n_b > 0) {
        const bool is_b = *b < *a; // two conditional moves instead of a branch that is wrong half the time
        *out++ = is_b ? *b : *a;
        b += is_b;
        n_b -= is_b;
        a += !is_b;
        n_a -= !is_b;
    }
    memcpy(out, n_a > 0 ? a : b, (size_t) (n_a + n_b) * sizeof(*out));
}

// Sorts v with tmp of the same size; returns the one of the two that holds the result.
static uint64_t * gcudai_sort_u64(uint64_t * v, uint64_t * tmp, int64_t n) {
    const int64_t run = 16;
    for (int64_t i = 0; i < n; i += run) {
        gcudai_insertion_sort(v + i, GCUDAI_MIN(run, n - i));
    }
    for (int64_t width = run; width < n; width *= 2) {
        for (int64_t i = 0; i < n; i += 2 * width) {
            const int64_t n_a = GCUDAI_MIN(width, n - i), n_b = GCUDAI_MIN(width, n - i - n_a);
            gcudai_merge(v + i, n_a, v + i + n_a, n_b, tmp + i);
        }
        uint64_t * swap = v;
        v = tmp;
        tmp = swap;
    }
    return v;
}

static void gcudai_put_indices(const struct gcuda_array * y, char * row, int64_t i0, int64_t n, const uint64_t * keys) {
    for (int64_t i = 0; i < n; ++i) {
        const int32_t index = gcudai_sort_index(keys[i]);
        memcpy(row + (size_t) (i0 + i) * y->nb[0], &index, sizeof(index));
    }
}

static double gcudai_log2_steps(int64_t n) {
    double steps = 1.0;
    for (; n > 1; n /= 2) {
        steps += 1.0;
    }
    return steps;
}

// A long row is sorted in parts, then each stretch of the result merges its share of all parts. That keeps all keys
// at once: only up to 128 MiB of them, else whole rows are sorted by one thread each.
static bool gcudai_is_sorted_in_parts(const struct gcuda_array * x) {
    return x->ne[0] > GCUDAI_SPAN && x->ne[0] * (x->ne[1] * x->ne[2] * x->ne[3]) <= ((int64_t) 1 << 24);
}

static void gcudai_argsort_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    const struct gcuda_array x = gcudai_array(y->src[0]);
    const int64_t n = x.ne[0], n_parts = gcudai_n_parts(n, GCUDAI_SPAN);
    w->n_items[0] = gcuda_nrows(y);
    w->item_cost[0] = 100.0 + 4.0 * (double) n * gcudai_log2_steps(n);
    if (!gcudai_is_sorted_in_parts(&x)) {
        if (!gcudai_mul_size((size_t) n, 2 * sizeof(uint64_t), &w->local_bytes)) {
            w->local_bytes = SIZE_MAX;
        }
        return;
    }
    w->n_phases = 2;
    w->n_items[0] = w->n_items[1] = gcuda_nrows(y) * n_parts;
    w->item_cost[0] = 4.0 * GCUDAI_SPAN * gcudai_log2_steps(GCUDAI_SPAN);
    w->item_cost[1] = 10.0 * GCUDAI_SPAN * gcudai_log2_steps(n_parts);
    w->shared_bytes = (size_t) gcuda_nelements(y) * sizeof(uint64_t);
    w->local_bytes = GCUDAI_SPAN * sizeof(uint64_t) + 3 * (size_t) n_parts * sizeof(int64_t);
}

// The parts of a row, each sorted, and for each the next key to take.
struct gcudai_runs {
    const uint64_t * keys;
    int64_t n, n_parts;
    int64_t * next; // of each part, counted in the row
    int64_t * lo;   // n_parts each, while searching
    int64_t * hi;
};

static int64_t gcudai_run_end(const struct gcudai_runs * r, int64_t part) { return GCUDAI_MIN((part + 1) * GCUDAI_SPAN, r->n); }

// First place of [lo, hi) whose key is not below `key`.
static int64_t gcudai_lower_bound(const uint64_t * keys, int64_t lo, int64_t hi, uint64_t key) {
    while (lo < hi) {
        const int64_t mid = lo + (hi - lo) / 2;
        if (keys[mid] < key) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

// Sets next so that exactly `rank` keys of the row stand before it, all smaller than the rest. Keys differ, so there is
// one such cut. Each round halves the widest range.
static void gcudai_runs_seek(const struct gcudai_runs * r, int64_t rank) {
    for (int64_t k = 0; k < r->n_parts; ++k) {
        r->lo[k] = k * GCUDAI_SPAN;
        r->hi[k] = gcudai_run_end(r, k);
    }
    for (;;) {
        int64_t widest = 0, below = 0;
        for (int64_t k = 1; k < r->n_parts; ++k) {
            widest = r->hi[k] - r->lo[k] > r->hi[widest] - r->lo[widest] ? k : widest;
        }
        if (r->hi[widest] == r->lo[widest]) {
            break;
        }
        const uint64_t pivot = r->keys[r->lo[widest] + (r->hi[widest] - r->lo[widest]) / 2];
        for (int64_t k = 0; k < r->n_parts; ++k) {
            r->next[k] = gcudai_lower_bound(r->keys, r->lo[k], r->hi[k], pivot);
            below += r->next[k] - k * GCUDAI_SPAN;
        }
        const bool is_low = below < rank; // the pivot itself is before the cut
        for (int64_t k = 0; k < r->n_parts; ++k) {
            if (is_low) {
                r->lo[k] = r->next[k] + (k == widest);
            } else {
                r->hi[k] = r->next[k];
            }
        }
    }
    memcpy(r->next, r->lo, (size_t) r->n_parts * sizeof(*r->next));
}

// Parts as a heap by their next key; lo is its storage, hi its size in hi[0].
static void gcudai_heap_down(const struct gcudai_runs * r, int64_t at, int64_t n) {
    int64_t * heap = r->lo;
    for (;;) {
        int64_t least = at;
        for (int64_t child = 2 * at + 1; child <= 2 * at + 2 && child < n; ++child) {
            least = r->keys[r->next[heap[child]]] < r->keys[r->next[heap[least]]] ? child : least;
        }
        if (least == at) {
            return;
        }
        const int64_t swap = heap[at];
        heap[at] = heap[least];
        heap[least] = swap;
        at = least;
    }
}

static void gcudai_runs_take(const struct gcudai_runs * r, int64_t n, uint64_t * out) {
    int64_t n_heap = 0;
    for (int64_t k = 0; k < r->n_parts; ++k) {
        if (r->next[k] < gcudai_run_end(r, k)) {
            r->lo[n_heap++] = k;
        }
    }
    for (int64_t at = n_heap / 2; at-- > 0;) {
        gcudai_heap_down(r, at, n_heap);
    }
    for (int64_t i = 0; i < n; ++i) {
        const int64_t k = r->lo[0];
        out[i] = r->keys[r->next[k]++];
        if (r->next[k] == gcudai_run_end(r, k)) {
            r->lo[0] = r->lo[--n_heap];
        }
        gcudai_heap_down(r, 0, n_heap);
    }
}

static void gcudai_argsort_part(const struct gcuda_sort_args * p, const struct gcudai_task * t, int64_t item) {
    const int64_t n = p->x.ne[0], n_parts = gcudai_n_parts(n, GCUDAI_SPAN), row = item / n_parts;
    const int64_t i0 = item % n_parts * GCUDAI_SPAN, i1 = GCUDAI_MIN(i0 + GCUDAI_SPAN, n);
    uint64_t * keys = (uint64_t *) (void *) t->shared + row * n;
    uint64_t * tmp = (uint64_t *) (void *) t->local;
    if (t->phase == 0) {
        gcudai_sort_keys(p, row, i0, i1, p->order == GCUDA_SORT_ORDER_DESC, keys + i0);
        const uint64_t * sorted = gcudai_sort_u64(keys + i0, tmp, i1 - i0);
        if (sorted == tmp) {
            memcpy(keys + i0, tmp, (size_t) (i1 - i0) * sizeof(*keys));
        }
        return;
    }
    int64_t * cuts = (int64_t *) (void *) (t->local + GCUDAI_SPAN * sizeof(uint64_t));
    const struct gcudai_runs runs = { keys, n, n_parts, cuts, cuts + n_parts, cuts + 2 * n_parts };
    gcudai_runs_seek(&runs, i0);
    gcudai_runs_take(&runs, i1 - i0, tmp);
    gcudai_put_indices(&p->y, gcudai_row(&p->y, row), i0, i1 - i0, tmp);
}

static void gcudai_argsort_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_sort_args * p = &args->sort;
    const int64_t n = p->x.ne[0];
    uint64_t * keys = (uint64_t *) (void *) t->local;
    const bool in_parts = gcudai_is_sorted_in_parts(&p->x);
    for (int64_t item = t->i0; item < t->i1; ++item) {
        if (in_parts) {
            gcudai_argsort_part(p, t, item);
        } else {
            gcudai_sort_keys(p, item, 0, n, p->order == GCUDA_SORT_ORDER_DESC, keys);
            gcudai_put_indices(&p->y, gcudai_row(&p->y, item), 0, n, gcudai_sort_u64(keys, keys + n, n));
        }
    }
}

static void gcudai_sort_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->sort.x = gcudai_array(y->src[0]);
    args->sort.y = gcudai_array(y);
    args->sort.order = gcudai_param_i32(y, 0) == (int32_t) GCUDA_SORT_ORDER_DESC ? GCUDA_SORT_ORDER_DESC : GCUDA_SORT_ORDER_ASC;
}

static gcuda_status gcudai_want_sortable(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * a = y->src[0];
    GCUDAI_TRY(gcudai_want_type(y, a, GCUDA_TYPE_F32));
    GCUDAI_TRY(gcudai_want_type(y, y, GCUDA_TYPE_I32));
    GCUDAI_WANT(y, a->ne[0] <= INT32_MAX, "rows are longer than an index counts");
    return GCUDA_STATUS_SUCCESS;
}

struct gcuda_tensor * gcuda_argsort(struct gcuda_context * ctx, struct gcuda_tensor * a, enum gcuda_sort_order order) {
    struct gcuda_tensor * src[] = { a };
    if (!gcudai_op_begin(ctx, GCUDA_OP_ARGSORT, src, 1)) {
        return NULL;
    }
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_ARGSORT, GCUDA_TYPE_I32, a->ne, src, 1);
    gcudai_set_param_i32(y, 0, (int32_t) order);
    return gcudai_op_finish(ctx, y);
}

static gcuda_status gcudai_argsort_check(const struct gcuda_tensor * y) {
    const int32_t order = gcudai_param_i32(y, 0);
    GCUDAI_WANT(y, order == (int32_t) GCUDA_SORT_ORDER_ASC || order == (int32_t) GCUDA_SORT_ORDER_DESC, "order is %d, want ascending or descending", (int) order);
    GCUDAI_TRY(gcudai_want_sortable(y));
    return gcudai_want_like(y, y->src[0]);
}

struct gcuda_tensor * gcuda_argsort_top_k(struct gcuda_context * ctx, struct gcuda_tensor * a, int k) {
    if (!gcudai_reduce_begin(ctx, GCUDA_OP_TOP_K, a)) {
        return NULL;
    }
    if (k < 1 || k > a->ne[0]) {
        return gcudai_op_error(ctx, GCUDA_OP_TOP_K, "k is %d, want 1 to ne[0] of [%lld, %lld, %lld, %lld]", k,
                               (long long) a->ne[0], (long long) a->ne[1], (long long) a->ne[2], (long long) a->ne[3]);
    }
    struct gcuda_tensor * order = gcuda_argsort(ctx, a, GCUDA_SORT_ORDER_DESC);
    return order ? gcuda_view_4d(ctx, order, k, order->ne[1], order->ne[2], order->ne[3], order->nb[1], order->nb[2], order->nb[3], 0) : NULL;
}

// >>op:top_k ------------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_top_k(struct gcuda_context * ctx, struct gcuda_tensor * a, int k) {
    if (!gcudai_reduce_begin(ctx, GCUDA_OP_TOP_K, a)) {
        return NULL;
    }
    return k < 1 ? gcudai_op_error(ctx, GCUDA_OP_TOP_K, "k is %d, want at least 1", k)
                 : gcudai_reduce(ctx, GCUDA_OP_TOP_K, a, GCUDA_TYPE_I32, k, a->ne[1], a->ne[2], a->ne[3]);
}

static gcuda_status gcudai_top_k_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * a = y->src[0];
    GCUDAI_TRY(gcudai_want_sortable(y));
    GCUDAI_WANT(y, y->ne[0] <= a->ne[0], "k is %lld, rows have %lld elements", (long long) y->ne[0], (long long) a->ne[0]);
    return gcudai_want_shape(y, y->ne[0], a->ne[1], a->ne[2], a->ne[3]);
}

static void gcudai_top_k_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    w->n_items[0] = gcuda_nrows(y);
    w->item_cost[0] = 100.0 + 4.0 * (double) y->src[0]->ne[0] + 10.0 * (double) y->ne[0] * gcudai_log2_steps(y->ne[0]);
    w->local_bytes = (size_t) y->ne[0] * sizeof(uint64_t);
}

// The smallest key is at the top; at may be too large for its place.
static void gcudai_key_heap_down(uint64_t * heap, int64_t at, int64_t n) {
    const uint64_t key = heap[at];
    for (int64_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
        child += child + 1 < n && heap[child + 1] < heap[child];
        if (heap[child] >= key) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = key;
}

// A heap of the best k so far; most elements are refused by one comparison with its worst.
static void gcudai_top_k_row(const struct gcuda_sort_args * p, int64_t row, uint64_t * heap) {
    const int64_t n = p->x.ne[0], k = p->y.ne[0];
    uint64_t keys[GCUDAI_PIECE];
    gcudai_sort_keys(p, row, 0, k, false, heap);
    for (int64_t at = k / 2; at-- > 0;) {
        gcudai_key_heap_down(heap, at, k);
    }
    for (int64_t i = k; i < n; i += GCUDAI_PIECE) {
        const int64_t m = GCUDAI_MIN(n - i, GCUDAI_PIECE);
        gcudai_sort_keys(p, row, i, i + m, false, keys);
        for (int64_t j = 0; j < m; ++j) {
            if (keys[j] > heap[0]) {
                heap[0] = keys[j];
                gcudai_key_heap_down(heap, 0, k);
            }
        }
    }
    gcudai_put_indices(&p->y, gcudai_row(&p->y, row), 0, k, heap);
}

static void gcudai_top_k_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    for (int64_t row = t->i0; row < t->i1; ++row) {
        gcudai_top_k_row(&args->sort, row, (uint64_t *) (void *) t->local);
    }
}

// >>op:soft_max ---------------------------------------------------------------------------------------
static struct gcuda_tensor * gcudai_soft_max(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * mask, float scale, float max_bias, bool inplace) {
    struct gcuda_tensor * src[] = { a, mask };
    if (!gcudai_op_begin(ctx, GCUDA_OP_SOFT_MAX, src, 2)) {
        return NULL;
    }
    struct gcuda_tensor * y = gcudai_op_like(ctx, GCUDA_OP_SOFT_MAX, src[0], src, 2, inplace);
    gcudai_set_param_f32(y, 0, scale);
    gcudai_set_param_f32(y, 1, max_bias);
    return gcudai_op_finish(ctx, y);
}

struct gcuda_tensor * gcuda_soft_max(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_soft_max(ctx, a, NULL, 1.0f, 0.0f, false); }
struct gcuda_tensor * gcuda_soft_max_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a) { return gcudai_soft_max(ctx, a, NULL, 1.0f, 0.0f, true); }
struct gcuda_tensor * gcuda_soft_max_ext(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * mask, float scale, float max_bias) {
    return gcudai_soft_max(ctx, a, mask, scale, max_bias, false);
}
struct gcuda_tensor * gcuda_soft_max_ext_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * mask, float scale, float max_bias) {
    return gcudai_soft_max(ctx, a, mask, scale, max_bias, true);
}

gcuda_status gcuda_soft_max_add_sinks(struct gcuda_tensor * a, struct gcuda_tensor * sinks) {
    if (a == NULL || a->op != GCUDA_OP_SOFT_MAX) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "soft_max_add_sinks: want a soft_max node");
    }
    a->src[2] = sinks; // kept also when they do not fit: the graph must not run without them unnoticed
    return gcudai_check_node(a);
}

static gcuda_status gcudai_want_mask(const struct gcuda_tensor * y, const struct gcuda_tensor * mask) {
    const struct gcuda_tensor * a = y->src[0];
    GCUDAI_TRY(gcudai_want_float(y, mask));
    GCUDAI_TRY(gcudai_want_contiguous(y, mask));
    GCUDAI_WANT(y, mask->ne[0] == a->ne[0] && mask->ne[1] >= a->ne[1], "mask must be [%lld, at least %lld]", (long long) a->ne[0], (long long) a->ne[1]);
    GCUDAI_WANT(y, mask->ne[2] > 0 && mask->ne[3] > 0 && a->ne[2] % mask->ne[2] == 0 && a->ne[3] % mask->ne[3] == 0, "the mask does not repeat over dimensions 2 and 3");
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_soft_max_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * sinks = y->src[2];
    const float max_bias = gcudai_param_f32(y, 1);
    GCUDAI_TRY(gcudai_want_map(y));
    GCUDAI_TRY(gcudai_want_contiguous(y, y->src[0]));
    GCUDAI_TRY(gcudai_want_contiguous(y, y));
    if (y->src[1] != NULL) {
        GCUDAI_TRY(gcudai_want_mask(y, y->src[1]));
    }
    GCUDAI_WANT(y, max_bias == 0.0f || (max_bias > 0.0f && y->src[1] != NULL), "max_bias is %g, want 0, or more and a mask", (double) max_bias);
    if (sinks != NULL) {
        GCUDAI_TRY(gcudai_want_type(y, sinks, GCUDA_TYPE_F32));
        GCUDAI_WANT(y, gcuda_is_vector(sinks) && sinks->ne[0] == y->ne[2], "want one sink for each of %lld heads", (long long) y->ne[2]);
    }
    return GCUDA_STATUS_SUCCESS;
}

static void gcudai_soft_max_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->soft_max.x = gcudai_array(y->src[0]);
    args->soft_max.mask = gcudai_array(y->src[1]);
    args->soft_max.sinks = gcudai_array(y->src[2]);
    args->soft_max.y = gcudai_array(y);
    args->soft_max.scale = gcudai_param_f32(y, 0);
    args->soft_max.max_bias = gcudai_param_f32(y, 1);
}

// Heads beyond the last power of two take the odd powers of a base of their own.
static float gcudai_alibi_slope(float max_bias, int64_t n_head, int64_t h) {
    if (max_bias <= 0.0f) {
        return 1.0f;
    }
    int64_t whole = 1;
    while (whole <= n_head / 2) {
        whole *= 2;
    }
    const double power = h < whole ? (double) (h + 1) : (double) (2 * (h - whole) + 1) / 2.0;
    return (float) pow(2.0, -(double) max_bias / (double) whole * power);
}

struct gcudai_soft_max_row {
    const char * x;
    const char * mask; // NULL: none
    char * y;
    float slope;
    double sink; // -inf: none
};

static struct gcudai_soft_max_row gcudai_soft_max_row_at(const struct gcuda_soft_max_args * p, int64_t r) {
    const int64_t i1 = r % p->x.ne[1], i2 = r / p->x.ne[1] % p->x.ne[2], i3 = r / p->x.ne[1] / p->x.ne[2];
    struct gcudai_soft_max_row row;
    row.x = gcudai_at(&p->x, i1, i2, i3);
    row.y = gcudai_at(&p->y, i1, i2, i3);
    row.mask = p->mask.data ? gcudai_at(&p->mask, i1, i2 % p->mask.ne[2], i3 % p->mask.ne[3]) : NULL;
    row.slope = gcudai_alibi_slope(p->max_bias, p->x.ne[2], i2);
    row.sink = -INFINITY;
    if (p->sinks.data) {
        float sink;
        memcpy(&sink, (const char *) p->sinks.data + (size_t) i2 * p->sinks.nb[0], sizeof(sink));
        row.sink = (double) sink;
    }
    return row;
}

// w[i] of n elements from i on, -inf behind them
static void gcudai_soft_max_logits(const struct gcuda_soft_max_args * p, const struct gcudai_soft_max_row * row, int64_t i, int64_t n, float * w) {
    float mask[GCUDAI_PIECE];
    gcudai_get(&p->x, row->x, i, n, 0.0f, w);
    GCUDAI_FOR_STEPS(j, n) {
        w[j] *= p->scale;
    }
    if (row->mask != NULL) {
        gcudai_get(&p->mask, row->mask, i, n, 0.0f, mask);
        GCUDAI_FOR_STEPS(j, n) {
            w[j] += row->slope * mask[j];
        }
    }
    for (; n % GCUDAI_STEP != 0; ++n) {
        w[n] = -INFINITY;
    }
}

static double gcudai_soft_max_max(const struct gcuda_soft_max_args * p, const struct gcudai_soft_max_row * row, const struct gcudai_span * s) {
    float w[GCUDAI_PIECE], max[GCUDAI_STEP];
    for (int k = 0; k < GCUDAI_STEP; ++k) {
        max[k] = (float) row->sink;
    }
    for (int64_t i = s->i0; i < s->i1; i += GCUDAI_PIECE) {
        const int64_t n = GCUDAI_MIN(s->i1 - i, GCUDAI_PIECE);
        gcudai_soft_max_logits(p, row, i, n, w);
        for (int64_t j = 0; j < n; j += GCUDAI_STEP) {
            for (int k = 0; k < GCUDAI_STEP; ++k) {
                max[k] = w[j + k] > max[k] || w[j + k] != w[j + k] ? w[j + k] : max[k]; // NaN stays
            }
        }
    }
    for (int k = 1; k < GCUDAI_STEP; ++k) {
        max[0] = max[k] > max[0] || max[k] != max[k] ? max[k] : max[0];
    }
    return (double) max[0];
}

// exp(w - max) into w; returns the sum
static double gcudai_exp_sum(float * w, int64_t n, float max) {
    GCUDAI_FOR_STEPS(j, n) {
        w[j] = expf(w[j] - max);
    }
    return gcudai_sum_powers(w, n, 0.0, 1);
}

// F32 results hold the exponentials between the last two phases; shorter types would round them twice.
static double gcudai_soft_max_sum(const struct gcuda_soft_max_args * p, const struct gcudai_soft_max_row * row, const struct gcudai_span * s, double max) {
    float w[GCUDAI_PIECE];
    double sum = s->part == 0 ? exp(row->sink - max) : 0.0;
    for (int64_t i = s->i0; i < s->i1; i += GCUDAI_PIECE) {
        const int64_t n = GCUDAI_MIN(s->i1 - i, GCUDAI_PIECE);
        gcudai_soft_max_logits(p, row, i, n, w);
        sum += gcudai_exp_sum(w, n, (float) max);
        if (p->y.type == GCUDA_TYPE_F32) {
            gcudai_put(&p->y, row->y, i, n, w);
        }
    }
    return sum;
}

static void gcudai_soft_max_write(const struct gcuda_soft_max_args * p, const struct gcudai_soft_max_row * row, const struct gcudai_span * s, double max, float scale) {
    float w[GCUDAI_PIECE];
    for (int64_t i = s->i0; i < s->i1; i += GCUDAI_PIECE) {
        const int64_t n = GCUDAI_MIN(s->i1 - i, GCUDAI_PIECE);
        if (p->y.type == GCUDA_TYPE_F32) {
            gcudai_get(&p->y, row->y, i, n, 0.0f, w);
        } else {
            gcudai_soft_max_logits(p, row, i, n, w);
            (void) gcudai_exp_sum(w, n, (float) max);
        }
        GCUDAI_FOR_STEPS(j, n) {
            w[j] *= scale;
        }
        gcudai_put(&p->y, row->y, i, n, w);
    }
}

static void gcudai_soft_max_zero(const struct gcuda_soft_max_args * p, const struct gcudai_soft_max_row * row, const struct gcudai_span * s) {
    float zero[GCUDAI_PIECE];
    memset(zero, 0, sizeof(zero));
    for (int64_t i = s->i0; i < s->i1; i += GCUDAI_PIECE) {
        gcudai_put(&p->y, row->y, i, GCUDAI_MIN(s->i1 - i, GCUDAI_PIECE), zero);
    }
}

// The result may lie on any source of its layout: what a source says is used up when the sum is known.
static void gcudai_soft_max_span(const union gcudai_args * args, const struct gcudai_span * s, int phase) {
    const struct gcuda_soft_max_args * p = &args->soft_max;
    const struct gcudai_soft_max_row row = gcudai_soft_max_row_at(p, s->row);
    if (phase == 0) {
        gcudai_slot_set(s, 0, gcudai_soft_max_max(p, &row, s));
        return;
    }
    const double max = gcudai_slot_max(s, 0);
    const bool is_masked = max == -INFINITY;
    if (phase == 1) {
        gcudai_slot_set(s, 1, is_masked ? 0.0 : gcudai_soft_max_sum(p, &row, s, max));
    } else if (is_masked) {
        gcudai_soft_max_zero(p, &row, s);
    } else {
        gcudai_soft_max_write(p, &row, s, max, (float) (1.0 / gcudai_slot_sum(s, 1)));
    }
}

static void gcudai_soft_max_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    gcudai_spans_run(args, t, args->soft_max.x.ne[0], GCUDAI_SPAN, 3, gcudai_soft_max_span);
}

// >>op:soft_max_back ----------------------------------------------------------------------------------
static struct gcuda_tensor * gcudai_soft_max_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, float scale, float max_bias, bool inplace) {
    struct gcuda_tensor * src[] = { a, b };
    if (!gcudai_op_begin(ctx, GCUDA_OP_SOFT_MAX_BACK, src, 2)) {
        return NULL;
    }
    struct gcuda_tensor * y = gcudai_op_like(ctx, GCUDA_OP_SOFT_MAX_BACK, src[0], src, 2, inplace);
    gcudai_set_param_f32(y, 0, scale);
    gcudai_set_param_f32(y, 1, max_bias);
    return gcudai_op_finish(ctx, y);
}

struct gcuda_tensor * gcuda_soft_max_ext_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, float scale, float max_bias) {
    return gcudai_soft_max_back(ctx, a, b, scale, max_bias, false);
}
struct gcuda_tensor * gcuda_soft_max_ext_back_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, float scale, float max_bias) {
    return gcudai_soft_max_back(ctx, a, b, scale, max_bias, true);
}

static gcuda_status gcudai_soft_max_back_check(const struct gcuda_tensor * y) {
    GCUDAI_TRY(gcudai_want_map(y));
    GCUDAI_TRY(gcudai_want_float(y, y->src[1]));
    GCUDAI_TRY(gcudai_want_contiguous(y, y->src[0]));
    GCUDAI_TRY(gcudai_want_contiguous(y, y->src[1]));
    GCUDAI_WANT(y, gcuda_are_same_shape(y->src[0], y->src[1]), "a and b differ in shape");
    return GCUDA_STATUS_SUCCESS;
}

static void gcudai_soft_max_back_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->soft_max_back.dy = gcudai_array(y->src[0]);
    args->soft_max_back.y = gcudai_array(y->src[1]);
    args->soft_max_back.dx = gcudai_array(y);
    args->soft_max_back.scale = gcudai_param_f32(y, 0);
}

static void gcudai_soft_max_back_span(const union gcudai_args * args, const struct gcudai_span * s, int phase) {
    const struct gcuda_soft_max_back_args * p = &args->soft_max_back;
    const char * row_dy = gcudai_row(&p->dy, s->row);
    const char * row_y = gcudai_row(&p->y, s->row);
    if (phase == 0) {
        gcudai_slot_set(s, 0, gcudai_dot_span(&p->dy, row_dy, &p->y, row_y, s->i0, s->i1));
        return;
    }
    const double dot = gcudai_slot_sum(s, 0);
    float dy[GCUDAI_PIECE], y[GCUDAI_PIECE];
    for (int64_t i = s->i0; i < s->i1; i += GCUDAI_PIECE) {
        const int64_t n = GCUDAI_MIN(s->i1 - i, GCUDAI_PIECE);
        gcudai_get(&p->dy, row_dy, i, n, 0.0f, dy);
        gcudai_get(&p->y, row_y, i, n, 0.0f, y);
        GCUDAI_FOR_STEPS(j, n) {
            dy[j] = (float) ((double) p->scale * (double) y[j] * ((double) dy[j] - dot));
        }
        gcudai_put(&p->dx, gcudai_row(&p->dx, s->row), i, n, dy);
    }
}

static void gcudai_soft_max_back_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    gcudai_spans_run(args, t, args->soft_max_back.dy.ne[0], GCUDAI_SPAN, 2, gcudai_soft_max_back_span);
}

// >>op:rope -------------------------------------------------------------------------------------------
struct gcudai_rope_params {
    int n_dims, mode, n_ctx_orig;
    float f[6]; // freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow
    const int * sections; // NULL: none
};

static struct gcuda_tensor * gcudai_rope(struct gcuda_context * ctx, enum gcuda_op op, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c, const struct gcudai_rope_params * p, bool inplace) {
    struct gcuda_tensor * src[] = { a, b, c };
    if (!gcudai_op_begin(ctx, op, src, 3)) {
        return NULL;
    }
    struct gcuda_tensor * y = gcudai_op_like(ctx, op, src[0], src, 3, inplace);
    gcudai_set_param_i32(y, 1, p->n_dims);
    gcudai_set_param_i32(y, 2, p->mode);
    gcudai_set_param_i32(y, 4, p->n_ctx_orig);
    for (int i = 0; i < 6; ++i) {
        gcudai_set_param_f32(y, 5 + i, p->f[i]);
    }
    for (int i = 0; i < GCUDA_MROPE_SECTIONS; ++i) {
        gcudai_set_param_i32(y, 11 + i, p->sections ? p->sections[i] : 0);
    }
    return gcudai_op_finish(ctx, y);
}

struct gcuda_tensor * gcuda_rope(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int n_dims, int mode) {
    const struct gcudai_rope_params p = { n_dims, mode, 0, { 10000.0f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f }, NULL };
    return gcudai_rope(ctx, GCUDA_OP_ROPE, a, b, NULL, &p, false);
}

struct gcuda_tensor * gcuda_rope_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int n_dims, int mode) {
    const struct gcudai_rope_params p = { n_dims, mode, 0, { 10000.0f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f }, NULL };
    return gcudai_rope(ctx, GCUDA_OP_ROPE, a, b, NULL, &p, true);
}

struct gcuda_tensor * gcuda_rope_ext(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c, int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow) {
    const struct gcudai_rope_params p = { n_dims, mode, n_ctx_orig, { freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow }, NULL };
    return gcudai_rope(ctx, GCUDA_OP_ROPE, a, b, c, &p, false);
}

struct gcuda_tensor * gcuda_rope_ext_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c, int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow) {
    const struct gcudai_rope_params p = { n_dims, mode, n_ctx_orig, { freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow }, NULL };
    return gcudai_rope(ctx, GCUDA_OP_ROPE, a, b, c, &p, true);
}

struct gcuda_tensor * gcuda_rope_multi(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c, int n_dims, const int * sections, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow) {
    const struct gcudai_rope_params p = { n_dims, mode, n_ctx_orig, { freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow }, sections };
    return gcudai_rope(ctx, GCUDA_OP_ROPE, a, b, c, &p, false);
}

struct gcuda_tensor * gcuda_rope_multi_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c, int n_dims, const int * sections, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow) {
    const struct gcudai_rope_params p = { n_dims, mode, n_ctx_orig, { freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow }, sections };
    return gcudai_rope(ctx, GCUDA_OP_ROPE, a, b, c, &p, true);
}

struct gcuda_tensor * gcuda_rope_custom(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow) {
    const struct gcudai_rope_params p = { n_dims, mode, n_ctx_orig, { freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow }, NULL };
    return gcudai_rope(ctx, GCUDA_OP_ROPE, a, b, NULL, &p, false);
}

struct gcuda_tensor * gcuda_rope_custom_inplace(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow) {
    const struct gcudai_rope_params p = { n_dims, mode, n_ctx_orig, { freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow }, NULL };
    return gcudai_rope(ctx, GCUDA_OP_ROPE, a, b, NULL, &p, true);
}

static gcuda_status gcudai_want_sections(const struct gcuda_tensor * y) {
    int64_t sum = 0;
    for (int i = 0; i < GCUDA_MROPE_SECTIONS; ++i) {
        GCUDAI_WANT(y, gcudai_param_i32(y, 11 + i) >= 0, "section %d has %d pairs", i, (int) gcudai_param_i32(y, 11 + i));
        sum += gcudai_param_i32(y, 11 + i);
    }
    GCUDAI_WANT(y, sum > gcudai_param_i32(y, 14) && sum <= y->ne[0], "sections sum up to %lld, want 1 to %lld and one of the first three",
                (long long) sum, (long long) y->ne[0]);
    return GCUDA_STATUS_SUCCESS;
}

static int64_t gcudai_rope_n_pairs(int n_dims, int mode) { return mode == GCUDA_ROPE_TYPE_VISION ? n_dims : n_dims / 2; }

static gcuda_status gcudai_want_rope_mode(const struct gcuda_tensor * y, int n_dims, int mode) {
    GCUDAI_WANT(y, mode == GCUDA_ROPE_TYPE_NORMAL || mode == GCUDA_ROPE_TYPE_NEOX || mode == GCUDA_ROPE_TYPE_MROPE || mode == GCUDA_ROPE_TYPE_VISION ||
                   mode == GCUDA_ROPE_TYPE_IMROPE, "mode %d does not exist", mode);
    GCUDAI_WANT(y, n_dims > 0 && n_dims % 2 == 0 && n_dims <= y->ne[0], "n_dims is %d, want an even number up to %lld", n_dims, (long long) y->ne[0]);
    GCUDAI_WANT(y, mode != GCUDA_ROPE_TYPE_VISION || 2 * (int64_t) n_dims == y->ne[0], "n_dims is %d, in mode vision half of %lld", n_dims, (long long) y->ne[0]);
    return (mode & 8) != 0 ? gcudai_want_sections(y) : GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_rope_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * pos = y->src[1];
    const struct gcuda_tensor * factors = y->src[2];
    const int n_dims = gcudai_param_i32(y, 1), mode = gcudai_param_i32(y, 2);
    GCUDAI_TRY(gcudai_want_map(y));
    GCUDAI_TRY(gcudai_want_rope_mode(y, n_dims, mode));
    GCUDAI_TRY(gcudai_want_type(y, pos, GCUDA_TYPE_I32));
    const int64_t per_token = (mode & 8) != 0 ? 4 : 1;
    GCUDAI_WANT(y, gcuda_is_vector(pos) && pos->ne[0] % per_token == 0 && pos->ne[0] / per_token == y->ne[2], "want %d position(s) for each of %lld tokens",
                (int) per_token, (long long) y->ne[2]);
    if (factors != NULL) {
        GCUDAI_TRY(gcudai_want_type(y, factors, GCUDA_TYPE_F32));
        GCUDAI_WANT(y, gcuda_is_vector(factors) && factors->ne[0] >= gcudai_rope_n_pairs(n_dims, mode), "want %lld frequency factors",
                    (long long) gcudai_rope_n_pairs(n_dims, mode));
    }
    GCUDAI_WANT(y, gcudai_param_f32(y, 5) > 0.0f, "freq_base is %g, want > 0", (double) gcudai_param_f32(y, 5));
    return GCUDA_STATUS_SUCCESS;
}

static void gcudai_rope_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    struct gcuda_rope_args * p = &args->rope;
    p->x = gcudai_array(y->src[0]);
    p->pos = gcudai_array(y->src[1]);
    p->factors = gcudai_array(y->src[2]);
    p->y = gcudai_array(y);
    p->is_back = y->op == GCUDA_OP_ROPE_BACK;
    p->n_dims = gcudai_param_i32(y, 1);
    p->mode = gcudai_param_i32(y, 2);
    p->n_ctx_orig = gcudai_param_i32(y, 4);
    p->freq_base = gcudai_param_f32(y, 5);
    p->freq_scale = gcudai_param_f32(y, 6);
    p->ext_factor = gcudai_param_f32(y, 7);
    p->attn_factor = gcudai_param_f32(y, 8);
    p->beta_fast = gcudai_param_f32(y, 9);
    p->beta_slow = gcudai_param_f32(y, 10);
    for (int i = 0; i < GCUDA_MROPE_SECTIONS; ++i) {
        p->sections[i] = gcudai_param_i32(y, 11 + i);
    }
}

// Infinities stay floats: n_ctx_orig = 0 gives logarithms of 0.
static float gcudai_yarn_corr(int n_dims, int n_ctx_orig, float freq_base, float beta) {
    return (float) n_dims * logf((float) n_ctx_orig / (beta * 6.28318530717958648f)) / (2.0f * logf(freq_base));
}

void gcuda_rope_yarn_corr_dims(int n_dims, int n_ctx_orig, float freq_base, float beta_fast, float beta_slow, float dims[2]) {
    const float low = floorf(gcudai_yarn_corr(n_dims, n_ctx_orig, freq_base, beta_fast));
    const float high = ceilf(gcudai_yarn_corr(n_dims, n_ctx_orig, freq_base, beta_slow));
    dims[0] = low > 0.0f ? low : 0.0f;
    dims[1] = high < (float) (n_dims - 1) ? high : (float) (n_dims - 1);
}

// What a pair's angle is made of: position * freq, the position from one of four planes.
struct gcudai_rope_pair {
    double freq;
    int64_t plane;
};

// Plane of pair j and the power of its frequency.
static int64_t gcudai_rope_plane(const struct gcuda_rope_args * p, int64_t j, int64_t * power) {
    const int64_t s0 = p->sections[0], s1 = p->sections[1], s2 = p->sections[2];
    const int64_t start[GCUDA_MROPE_SECTIONS] = { 0, s0, s0 + s1, s0 + s1 + s2 };
    const int64_t q = j % (start[3] + p->sections[3]);
    *power = j;
    if (p->mode == GCUDA_ROPE_TYPE_IMROPE) {
        return q % 3 == 1 && q < 3 * s1 ? 1 : q % 3 == 2 && q < 3 * s2 ? 2 : q % 3 == 0 && q < 3 * s0 ? 0 : 3;
    }
    const int64_t plane = q < start[1] ? 0 : q < start[2] ? 1 : q < start[3] ? 2 : 3;
    if (p->mode == GCUDA_ROPE_TYPE_VISION) {
        *power = q - start[plane];
    }
    return plane;
}

// Share of the unscaled angle in pair j: 0 without YaRN.
static double gcudai_yarn_mix(const struct gcuda_rope_args * p, int64_t j) {
    float dims[2];
    if (p->ext_factor == 0.0f) {
        return 0.0;
    }
    gcuda_rope_yarn_corr_dims(p->n_dims, p->n_ctx_orig, p->freq_base, p->beta_fast, p->beta_slow, dims);
    const double width = (double) dims[1] - (double) dims[0];
    const double y = ((double) j - (double) dims[0]) / (width > 0.001 ? width : 0.001);
    const double ramp = 1.0 - (y < 0.0 ? 0.0 : y > 1.0 ? 1.0 : y);
    return ramp * (double) p->ext_factor;
}

static void gcudai_rope_pairs(const struct gcuda_rope_args * p, struct gcudai_rope_pair * pairs) {
    const int64_t n_pairs = gcudai_rope_n_pairs(p->n_dims, p->mode);
    for (int64_t j = 0; j < n_pairs; ++j) {
        int64_t power = j;
        float factor = 1.0f;
        if (p->factors.data != NULL) {
            memcpy(&factor, (const char *) p->factors.data + (size_t) j * p->factors.nb[0], sizeof(factor));
        }
        pairs[j].plane = (p->mode & 8) != 0 ? gcudai_rope_plane(p, j, &power) : 0;
        const double mix = gcudai_yarn_mix(p, j);
        pairs[j].freq = pow((double) p->freq_base, -2.0 * (double) power / (double) p->n_dims) / (double) factor *
                        ((double) p->freq_scale * (1.0 - mix) + mix);
    }
}

// Cosine and sine of a token's pairs, as float: cs[2j], cs[2j + 1].
static void gcudai_rope_angles(const struct gcuda_rope_args * p, const struct gcudai_rope_pair * pairs, int64_t token, float * cs) {
    const int64_t n_pairs = gcudai_rope_n_pairs(p->n_dims, p->mode);
    double magnitude = (double) p->attn_factor;
    if (p->ext_factor != 0.0f) {
        magnitude *= 1.0 + 0.1 * log(1.0 / (double) p->freq_scale);
    }
    for (int64_t j = 0; j < n_pairs; ++j) {
        const int64_t at = pairs[j].plane * p->x.ne[2] + token;
        const double theta = (double) gcudai_read_i32((const char *) p->pos.data + (size_t) at * p->pos.nb[0]) * pairs[j].freq;
        cs[2 * j] = (float) (cos(theta) * magnitude);
        cs[2 * j + 1] = (float) (sin(theta) * (p->is_back ? -magnitude : magnitude));
    }
}

static void gcudai_rope_rotate(const struct gcuda_rope_args * p, const float * cs, float * row) {
    const int64_t n_pairs = gcudai_rope_n_pairs(p->n_dims, p->mode);
    const int64_t step = p->mode == GCUDA_ROPE_TYPE_NORMAL ? 2 : 1, apart = p->mode == GCUDA_ROPE_TYPE_NORMAL ? 1 : n_pairs;
    for (int64_t j = 0; j < n_pairs; ++j) {
        float * u = row + j * step;
        const float x = u[0], y = u[apart];
        u[0] = x * cs[2 * j] - y * cs[2 * j + 1];
        u[apart] = x * cs[2 * j + 1] + y * cs[2 * j];
    }
}

// First the frequencies, once; then an item is a token of one batch: its angles serve all heads.
static void gcudai_rope_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    const int64_t n_pairs = gcudai_rope_n_pairs(gcudai_param_i32(y, 1), gcudai_param_i32(y, 2));
    const int64_t padded = y->ne[0] + GCUDAI_STEP; // gcudai_get pads
    w->n_phases = 2;
    w->n_items[0] = 1;
    w->item_cost[0] = 300.0 * (double) n_pairs;
    w->n_items[1] = y->ne[2] * y->ne[3];
    w->item_cost[1] = 20.0 + 150.0 * (double) n_pairs + (double) y->ne[1] * (20.0 + 4.0 * (double) y->ne[0]);
    w->shared_bytes = (size_t) n_pairs * sizeof(struct gcudai_rope_pair);
    w->local_bytes = ((size_t) padded + 2 * (size_t) n_pairs) * sizeof(float);
}

static void gcudai_rope_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_rope_args * p = &args->rope;
    struct gcudai_rope_pair * pairs = (struct gcudai_rope_pair *) (void *) t->shared;
    if (t->phase == 0) {
        gcudai_rope_pairs(p, pairs);
        return;
    }
    const int64_t n = p->x.ne[0];
    float * cs = (float *) (void *) t->local;
    float * row = cs + 2 * gcudai_rope_n_pairs(p->n_dims, p->mode);
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const int64_t i2 = item % p->x.ne[2], i3 = item / p->x.ne[2];
        gcudai_rope_angles(p, pairs, i2, cs);
        for (int64_t i1 = 0; i1 < p->x.ne[1]; ++i1) {
            gcudai_get(&p->x, gcudai_at(&p->x, i1, i2, i3), 0, n, 0.0f, row);
            gcudai_rope_rotate(p, cs, row);
            gcudai_put(&p->y, gcudai_at(&p->y, i1, i2, i3), 0, n, row);
        }
    }
}

// >>op:rope_back --------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_rope_ext_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c, int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow) {
    const struct gcudai_rope_params p = { n_dims, mode, n_ctx_orig, { freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow }, NULL };
    return gcudai_rope(ctx, GCUDA_OP_ROPE_BACK, a, b, c, &p, false);
}

struct gcuda_tensor * gcuda_rope_multi_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c, int n_dims, const int * sections, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow) {
    const struct gcudai_rope_params p = { n_dims, mode, n_ctx_orig, { freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow }, sections };
    return gcudai_rope(ctx, GCUDA_OP_ROPE_BACK, a, b, c, &p, false);
}

static gcuda_status gcudai_rope_back_check(const struct gcuda_tensor * y) { return gcudai_rope_check(y); }
static void gcudai_rope_back_cpu(const union gcudai_args * args, const struct gcudai_task * t) { gcudai_rope_cpu(args, t); }

// >>op:cross_entropy_loss -----------------------------------------------------------------------------
struct gcuda_tensor * gcuda_cross_entropy_loss(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    struct gcuda_tensor * src[] = { a, b };
    const int64_t ne[GCUDA_MAX_DIMS] = { 1, 1, 1, 1 };
    if (!gcudai_op_begin(ctx, GCUDA_OP_CROSS_ENTROPY_LOSS, src, 2)) {
        return NULL;
    }
    return gcudai_op_finish(ctx, gcudai_op_new(ctx, GCUDA_OP_CROSS_ENTROPY_LOSS, GCUDA_TYPE_F32, ne, src, 2));
}

static gcuda_status gcudai_want_labels(const struct gcuda_tensor * y, const struct gcuda_tensor * logits, const struct gcuda_tensor * labels) {
    GCUDAI_TRY(gcudai_want_float(y, logits));
    GCUDAI_TRY(gcudai_want_float(y, labels));
    GCUDAI_TRY(gcudai_want_contiguous(y, logits));
    GCUDAI_TRY(gcudai_want_contiguous(y, labels));
    GCUDAI_WANT(y, gcuda_are_same_shape(logits, labels), "logits and labels differ in shape");
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_cross_entropy_loss_check(const struct gcuda_tensor * y) {
    GCUDAI_TRY(gcudai_want_labels(y, y->src[0], y->src[1]));
    GCUDAI_TRY(gcudai_want_type(y, y, GCUDA_TYPE_F32));
    return gcudai_want_shape(y, 1, 1, 1, 1);
}

static void gcudai_cross_entropy_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    const int logits = y->op == GCUDA_OP_CROSS_ENTROPY_LOSS ? 0 : 1;
    args->cross_entropy.logits = gcudai_array(y->src[logits]);
    args->cross_entropy.labels = gcudai_array(y->src[logits + 1]);
    args->cross_entropy.grad = gcudai_array(logits == 1 ? y->src[0] : NULL);
    args->cross_entropy.y = gcudai_array(y);
}

// What is known of a part of a row after two phases; the third adds up all rows.
struct gcudai_entropy_part {
    double max, exp_sum; // largest logit; sum of exp(a - max of the row)
    double dot, labels;  // sums of b (a - max of the row) and of b
};

static void gcudai_cross_entropy_loss_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    const struct gcuda_tensor * a = y->src[0];
    const int64_t n_rows = gcuda_nrows(a), n_parts = gcudai_n_parts(a->ne[0], GCUDAI_SPAN);
    const int last = n_parts == 1 ? 1 : 2;
    w->n_phases = last + 1;
    w->n_items[0] = w->n_items[1] = n_rows * n_parts;
    w->item_cost[0] = w->item_cost[1] = 40.0 + 20.0 * (double) GCUDAI_MIN(a->ne[0], GCUDAI_SPAN);
    w->n_items[last] = 1;
    w->item_cost[last] = 10.0 * (double) n_rows * (double) n_parts;
    if (!gcudai_mul_size((size_t) n_rows, (size_t) n_parts * sizeof(struct gcudai_entropy_part), &w->shared_bytes)) {
        w->shared_bytes = SIZE_MAX;
    }
}

static double gcudai_max_span(const struct gcuda_array * x, const char * row, int64_t i0, int64_t i1) {
    float buf[GCUDAI_PIECE], max = -INFINITY;
    for (int64_t i = i0; i < i1; i += GCUDAI_PIECE) {
        const int64_t n = GCUDAI_MIN(i1 - i, GCUDAI_PIECE);
        gcudai_get(x, row, i, n, 0.0f, buf);
        for (int64_t j = 0; j < n; ++j) {
            max = buf[j] > max ? buf[j] : max;
        }
    }
    return (double) max;
}

static void gcudai_entropy_sums(const struct gcuda_cross_entropy_args * p, int64_t row, int64_t i0, int64_t i1, double max, struct gcudai_entropy_part * part) {
    float a[GCUDAI_PIECE], b[GCUDAI_PIECE];
    part->exp_sum = part->dot = part->labels = 0.0;
    for (int64_t i = i0; i < i1; i += GCUDAI_PIECE) {
        const int64_t n = GCUDAI_MIN(i1 - i, GCUDAI_PIECE);
        gcudai_get(&p->logits, gcudai_row(&p->logits, row), i, n, 0.0f, a);
        gcudai_get(&p->labels, gcudai_row(&p->labels, row), i, n, 0.0f, b);
        for (int64_t j = 0; j < n; ++j) {
            part->dot += b[j] != 0.0f ? (double) b[j] * ((double) a[j] - max) : 0.0; // 0 * -inf is no loss
            part->labels += (double) b[j];
        }
        part->exp_sum += gcudai_exp_sum(a, n, (float) max);
    }
}

static double gcudai_entropy_max(const struct gcudai_entropy_part * parts, int64_t n) {
    double max = parts[0].max;
    for (int64_t k = 1; k < n; ++k) {
        max = parts[k].max > max ? parts[k].max : max;
    }
    return max;
}

static double gcudai_entropy_of_row(const struct gcudai_entropy_part * parts, int64_t n) {
    double exp_sum = 0.0, dot = 0.0, labels = 0.0;
    for (int64_t k = 0; k < n; ++k) {
        exp_sum += parts[k].exp_sum;
        dot += parts[k].dot;
        labels += parts[k].labels;
    }
    return labels * log(exp_sum) - dot;
}

static void gcudai_cross_entropy_loss_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_cross_entropy_args * p = &args->cross_entropy;
    const int64_t n = p->logits.ne[0], n_parts = gcudai_n_parts(n, GCUDAI_SPAN), n_rows = p->logits.ne[1] * p->logits.ne[2] * p->logits.ne[3];
    struct gcudai_entropy_part * parts = (struct gcudai_entropy_part *) (void *) t->shared;
    if (t->phase == (n_parts == 1 ? 1 : 2)) {
        double sum = 0.0;
        for (int64_t r = 0; r < n_rows && n > 0; ++r) {
            sum += gcudai_entropy_of_row(parts + r * n_parts, n_parts);
        }
        gcudai_put_one(&p->y, (char *) p->y.data, n_rows > 0 ? sum / (double) n_rows : 0.0);
        return;
    }
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const int64_t row = item / n_parts, i0 = item % n_parts * GCUDAI_SPAN, i1 = GCUDAI_MIN(i0 + GCUDAI_SPAN, n);
        if (t->phase == 0) {
            parts[item].max = gcudai_max_span(&p->logits, gcudai_row(&p->logits, row), i0, i1);
        }
        if (t->phase == 1 || n_parts == 1) {
            gcudai_entropy_sums(p, row, i0, i1, gcudai_entropy_max(parts + row * n_parts, n_parts), &parts[item]);
        }
    }
}

// >>op:cross_entropy_loss_back ------------------------------------------------------------------------
struct gcuda_tensor * gcuda_cross_entropy_loss_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * c) {
    struct gcuda_tensor * src[] = { a, b, c };
    if (!gcudai_op_begin(ctx, GCUDA_OP_CROSS_ENTROPY_LOSS_BACK, src, 3)) {
        return NULL;
    }
    return gcudai_op_finish(ctx, gcudai_op_new(ctx, GCUDA_OP_CROSS_ENTROPY_LOSS_BACK, b->type, b->ne, src, 3));
}

static gcuda_status gcudai_cross_entropy_loss_back_check(const struct gcuda_tensor * y) {
    GCUDAI_TRY(gcudai_want_type(y, y->src[0], GCUDA_TYPE_F32));
    GCUDAI_WANT(y, gcuda_is_scalar(y->src[0]), "the gradient of the loss must be one element");
    GCUDAI_TRY(gcudai_want_labels(y, y->src[1], y->src[2]));
    GCUDAI_TRY(gcudai_want_type(y, y, y->src[1]->type));
    return gcudai_want_like(y, y->src[1]);
}

static void gcudai_entropy_back_write(const struct gcuda_cross_entropy_args * p, const struct gcudai_span * s, float max, double exp_sum) {
    const double n_rows = (double) (p->y.ne[1] * p->y.ne[2] * p->y.ne[3]);
    float a[GCUDAI_PIECE], b[GCUDAI_PIECE], grad;
    memcpy(&grad, p->grad.data, sizeof(grad));
    const double factor = (double) grad / n_rows;
    for (int64_t i = s->i0; i < s->i1; i += GCUDAI_PIECE) {
        const int64_t n = GCUDAI_MIN(s->i1 - i, GCUDAI_PIECE);
        gcudai_get(&p->logits, gcudai_row(&p->logits, s->row), i, n, 0.0f, a);
        gcudai_get(&p->labels, gcudai_row(&p->labels, s->row), i, n, 0.0f, b);
        (void) gcudai_exp_sum(a, n, max);
        GCUDAI_FOR_STEPS(j, n) {
            a[j] = (float) (((double) a[j] / exp_sum - (double) b[j]) * factor);
        }
        gcudai_put(&p->y, gcudai_row(&p->y, s->row), i, n, a);
    }
}

static void gcudai_cross_entropy_back_span(const union gcudai_args * args, const struct gcudai_span * s, int phase) {
    const struct gcuda_cross_entropy_args * p = &args->cross_entropy;
    const char * row = gcudai_row(&p->logits, s->row);
    float buf[GCUDAI_PIECE];
    if (phase == 0) {
        gcudai_slot_set(s, 0, gcudai_max_span(&p->logits, row, s->i0, s->i1));
        return;
    }
    const float max = (float) gcudai_slot_max(s, 0);
    if (phase == 2) {
        gcudai_entropy_back_write(p, s, max, gcudai_slot_sum(s, 1));
        return;
    }
    double sum = 0.0;
    for (int64_t i = s->i0; i < s->i1; i += GCUDAI_PIECE) {
        const int64_t n = GCUDAI_MIN(s->i1 - i, GCUDAI_PIECE);
        gcudai_get(&p->logits, row, i, n, 0.0f, buf);
        sum += gcudai_exp_sum(buf, n, max);
    }
    gcudai_slot_set(s, 1, sum);
}

static void gcudai_cross_entropy_loss_back_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    gcudai_spans_run(args, t, args->cross_entropy.logits.ne[0], GCUDAI_SPAN, 3, gcudai_cross_entropy_back_span);
}

// >>op:opt_step_adamw ---------------------------------------------------------------------------------
static struct gcuda_tensor * gcudai_opt_step(struct gcuda_context * ctx, enum gcuda_op op, struct gcuda_tensor ** src, int n) {
    return gcudai_op_begin(ctx, op, src, n) ? gcudai_op_finish(ctx, gcudai_op_view(ctx, op, src[0], src, n)) : NULL;
}

struct gcuda_tensor * gcuda_opt_step_adamw(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * grad, struct gcuda_tensor * m, struct gcuda_tensor * v, struct gcuda_tensor * adamw_params) {
    struct gcuda_tensor * src[] = { a, grad, m, v, adamw_params };
    return gcudai_opt_step(ctx, GCUDA_OP_OPT_STEP_ADAMW, src, 5);
}

// The first n_like sources are alike, the next one holds n_params numbers, and the result is source 0 itself.
static gcuda_status gcudai_want_opt_step(const struct gcuda_tensor * y, int n_like, int64_t n_params) {
    const struct gcuda_tensor * a = y->src[0];
    const struct gcuda_tensor * params = y->src[n_like];
    GCUDAI_WANT(y, (a->flags & GCUDA_TENSOR_FLAG_PARAM) != 0, "'%s' is no parameter: see gcuda_set_param", a->name);
    for (int i = 0; i < n_like; ++i) {
        GCUDAI_TRY(gcudai_want_type(y, y->src[i], GCUDA_TYPE_F32));
        GCUDAI_TRY(gcudai_want_contiguous(y, y->src[i]));
        GCUDAI_WANT(y, gcuda_are_same_shape(y->src[i], a), "source %d must have the shape of the parameter", i);
    }
    GCUDAI_TRY(gcudai_want_type(y, params, GCUDA_TYPE_F32));
    GCUDAI_TRY(gcudai_want_contiguous(y, params));
    GCUDAI_WANT(y, gcuda_nelements(params) == n_params, "want %lld numbers in '%s'", (long long) n_params, params->name);
    GCUDAI_TRY(gcudai_want_alias(y));
    return gcudai_want_like(y, a);
}

static gcuda_status gcudai_opt_step_adamw_check(const struct gcuda_tensor * y) { return gcudai_want_opt_step(y, 4, 7); }

static void gcudai_opt_step_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    const bool is_adamw = y->op == GCUDA_OP_OPT_STEP_ADAMW;
    args->opt_step.a = gcudai_array(y->src[0]);
    args->opt_step.grad = gcudai_array(y->src[1]);
    args->opt_step.m = gcudai_array(is_adamw ? y->src[2] : NULL);
    args->opt_step.v = gcudai_array(is_adamw ? y->src[3] : NULL);
    args->opt_step.params = gcudai_array(y->src[is_adamw ? 4 : 2]);
}

static void gcudai_opt_step_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    w->n_items[0] = (gcuda_nelements(y) - 1) / GCUDAI_ITEM + 1;
    w->item_cost[0] = 20.0 * GCUDAI_ITEM;
}

static void gcudai_opt_step_adamw_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_opt_step_args * p = &args->opt_step;
    const int64_t n = p->a.ne[0] * p->a.ne[1] * p->a.ne[2] * p->a.ne[3];
    const float * k = (const float *) p->params.data;
    const float alpha = k[0], beta1 = k[1], beta2 = k[2], eps = k[3], keep = 1.0f - alpha * k[4], beta1h = k[5], beta2h = k[6];
    const float * grad = (const float *) p->grad.data;
    float * a = (float *) p->a.data;
    float * m = (float *) p->m.data;
    float * v = (float *) p->v.data;
    for (int64_t i = t->i0 * GCUDAI_ITEM; i < GCUDAI_MIN(t->i1 * GCUDAI_ITEM, n); ++i) {
        const float g = grad[i];
        m[i] = m[i] * beta1 + g * (1.0f - beta1);
        v[i] = v[i] * beta2 + g * g * (1.0f - beta2);
        a[i] = a[i] * keep - alpha * (m[i] * beta1h) / (sqrtf(v[i] * beta2h) + eps);
    }
}

// >>op:opt_step_sgd -----------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_opt_step_sgd(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * grad, struct gcuda_tensor * sgd_params) {
    struct gcuda_tensor * src[] = { a, grad, sgd_params };
    return gcudai_opt_step(ctx, GCUDA_OP_OPT_STEP_SGD, src, 3);
}

static gcuda_status gcudai_opt_step_sgd_check(const struct gcuda_tensor * y) { return gcudai_want_opt_step(y, 2, 2); }

static void gcudai_opt_step_sgd_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_opt_step_args * p = &args->opt_step;
    const int64_t n = p->a.ne[0] * p->a.ne[1] * p->a.ne[2] * p->a.ne[3];
    const float alpha = ((const float *) p->params.data)[0], keep = 1.0f - alpha * ((const float *) p->params.data)[1];
    const float * grad = (const float *) p->grad.data;
    float * a = (float *) p->a.data;
    for (int64_t i = t->i0 * GCUDAI_ITEM; i < GCUDAI_MIN(t->i1 * GCUDAI_ITEM, n); ++i) {
        a[i] = a[i] * keep - alpha * grad[i];
    }
}

// ---------------- end of ops-b ----------------

// ---------------- mulmat: matrix products ----------------

// >>op:mul_mat ----------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_mul_mat(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    struct gcuda_tensor * src[] = { a, b };
    if (!gcudai_op_begin(ctx, GCUDA_OP_MUL_MAT, src, 2)) { return NULL; }
    const int64_t ne[4] = { a->ne[1], b->ne[1], b->ne[2], b->ne[3] };
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_MUL_MAT, GCUDA_TYPE_F32, ne, src, 2);
    return gcudai_op_finish(ctx, y);
}

void gcuda_mul_mat_set_prec(struct gcuda_tensor * node, enum gcuda_prec prec) {
    gcudai_set_param_i32(node, 0, (int32_t) prec);
}

enum gcuda_type gcuda_mul_mat_partner(enum gcuda_type a) {
    switch (a) {
        case GCUDA_TYPE_Q4_0:
        case GCUDA_TYPE_Q5_0:
        case GCUDA_TYPE_Q8_0:
        case GCUDA_TYPE_IQ4_NL:
        case GCUDA_TYPE_MXFP4: return GCUDA_TYPE_Q8_0;
        case GCUDA_TYPE_Q4_1:
        case GCUDA_TYPE_Q5_1: return GCUDA_TYPE_Q8_1;
        default: return gcudai_is_weight(a) ? GCUDA_TYPE_Q8_K : GCUDA_TYPE_COUNT;
    }
}

static bool gcudai_mul_mat_divides(int64_t small, int64_t big) {
    return small > 0 ? big % small == 0 : big == 0;
}

// what MUL_MAT and MUL_MAT_ID want of the types of weights and activations
static gcuda_status gcudai_mul_mat_types(const struct gcuda_tensor * y, const struct gcuda_tensor * a, const struct gcuda_tensor * b) {
    GCUDAI_WANT(y, gcudai_is_float(a->type) || gcudai_is_weight(a->type), "weights are %s, want F32, F16, BF16 or a quantized weight type",
                gcuda_type_name(a->type));
    GCUDAI_WANT(y, gcudai_is_float(b->type) || b->type == gcuda_mul_mat_partner(a->type), "activations are %s, want F32, F16, BF16 or the "
                "block type that goes with %s", gcuda_type_name(b->type), gcuda_type_name(a->type));
    GCUDAI_WANT(y, a->ne[0] == b->ne[0], "rows have %lld and %lld elements", (long long) a->ne[0], (long long) b->ne[0]);
    GCUDAI_WANT(y, a->ne[0] % gcuda_blck_size(a->type) == 0 && b->ne[0] % gcuda_blck_size(b->type) == 0, "rows of %lld elements are no "
                "whole number of blocks", (long long) a->ne[0]);
    GCUDAI_TRY(gcudai_want_rows(y, a));
    GCUDAI_TRY(gcudai_want_rows(y, b));
    GCUDAI_TRY(gcudai_want_type(y, y, GCUDA_TYPE_F32));
    return gcudai_want_contiguous(y, y);
}

static gcuda_status gcudai_mul_mat_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * a = y->src[0], * b = y->src[1];
    GCUDAI_TRY(gcudai_mul_mat_types(y, a, b));
    GCUDAI_WANT(y, gcudai_mul_mat_divides(a->ne[2], b->ne[2]) && gcudai_mul_mat_divides(a->ne[3], b->ne[3]),
                "dimensions 2 and 3 of the second operand are no multiples of the first's");
    return gcudai_want_shape(y, a->ne[1], b->ne[1], b->ne[2], b->ne[3]);
}

static void gcudai_mul_mat_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->mul_mat.a = gcudai_array(y->src[0]);
    args->mul_mat.b = gcudai_array(y->src[1]);
    args->mul_mat.y = gcudai_array(y);
    args->mul_mat.prec = (enum gcuda_prec) gcudai_param_i32(y, 0);
}

// The work of one product in tiles of rows x columns. Nothing here depends on the number of threads, and no result
// depends on the tiles: each sum runs over K in one fixed order.
enum gcudai_mm_path {
    GCUDAI_MM_DOT,    // few columns or rows: rows as they lie, products in F32
    GCUDAI_MM_GEMM,   // packed F32 panels; quantized weights are dequantized while packing
    GCUDAI_MM_Q_DOT,  // quantized weights, few columns
    GCUDAI_MM_Q_PANEL // quantized weights, many columns, integer panels
};

struct gcudai_mm_plan {
    const struct gcudai_simd * simd;
    enum gcudai_mm_path path;
    bool converts;            // phase 0 prepares the activations
    size_t col_size;          // bytes of one prepared column, or of a quad of them for GEMM
    int64_t mt, nt;           // rows and columns of a tile
    int64_t m_tiles, n_tiles; // per matrix
    int64_t n_prepare;        // items of phase 0
    int64_t n_matrices;       // of which each is cut into tiles
    int64_t n;                // columns of each
};

static int64_t gcudai_clamp_i64(int64_t v, int64_t lo, int64_t hi) {
    return v < lo ? lo : v > hi ? hi : v;
}

// Rounded activations are right on average over many results: where a column has few, it is multiplied in F32.
static enum gcudai_mm_path gcudai_mm_choose(const struct gcudai_simd * simd, enum gcuda_type a, int64_t m, int64_t n, int64_t n_shared, int64_t k) {
    const bool exact = gcudai_is_float(a) || m < 16;
    if (k == 0 || m < 8 || n < 8) { return exact ? GCUDAI_MM_DOT : n_shared >= 16 && simd->q_panel ? GCUDAI_MM_Q_PANEL : GCUDAI_MM_Q_DOT; }
    if (exact || (simd->q_panel == NULL && n >= 48)) { return GCUDAI_MM_GEMM; }
    return n_shared >= 16 && simd->q_panel ? GCUDAI_MM_Q_PANEL : GCUDAI_MM_Q_DOT;
}

// m rows times n columns that share them, k deep. The cost of a tile is limited: an abort is seen within 5 ms.
static void gcudai_mm_tiles(struct gcudai_mm_plan * p, int64_t m, int64_t n, int64_t k) {
    const bool fast = p->simd != &gcudai_simd_scalar;
    const int64_t depth = k > 0 ? k : 1;
    if (p->path == GCUDAI_MM_GEMM) {
        const int64_t widest = gcudai_clamp_i64(((int64_t) 1 << (fast ? 26 : 23)) / GCUDAI_GEMM_MT / depth / 12 * 12, 12, 1020);
        const int64_t tiles = (n + widest - 1) / widest;
        p->mt = GCUDAI_GEMM_MT;
        p->nt = tiles > 0 ? ((n + tiles - 1) / tiles + 11) / 12 * 12 : 12; // nearly equal tiles of whole quads
    } else if (p->path == GCUDAI_MM_Q_PANEL) {
        p->mt = GCUDAI_Q_PANEL_ROWS;
        p->nt = gcudai_clamp_i64(((int64_t) 1 << 22) / depth / 4 * 4, 16, GCUDAI_MM_COLS);
    } else {
        p->nt = gcudai_clamp_i64(((int64_t) 1 << (fast ? 22 : 20)) / depth / 4 * 4, 4, 64);
        p->mt = gcudai_clamp_i64(((int64_t) 1 << 18) / depth / gcudai_clamp_i64(n, 1, p->nt), 1, 64);
    }
    p->m_tiles = (m + p->mt - 1) / p->mt;
    p->n_tiles = (n + p->nt - 1) / p->nt;
}

// Bytes of one prepared column (four of them for GEMM); SIZE_MAX when that overflows.
static size_t gcudai_mm_col_size(enum gcudai_mm_path path, int64_t k) {
    size_t size = 0;
    if (k > INT64_MAX / 64 || !gcudai_mul_size((size_t) gcudai_q_pad(k), 4 * sizeof(float), &size)) { return SIZE_MAX; }
    return path == GCUDAI_MM_GEMM ? (size_t) k * 4 * sizeof(float) : path == GCUDAI_MM_DOT ? size / 4 : gcudai_q_col_size(k);
}

static size_t gcudai_mm_local_bytes(enum gcudai_mm_path path) {
    switch (path) {
        case GCUDAI_MM_GEMM: return sizeof(struct gcudai_gemm_local);
        case GCUDAI_MM_Q_DOT: return sizeof(struct gcudai_q_local);
        case GCUDAI_MM_Q_PANEL: return sizeof(struct gcudai_q_panel_local);
        default: return sizeof(struct gcudai_dot_local);
    }
}

// in units of 0.3 ns
static double gcudai_mm_tile_cost(const struct gcudai_mm_plan * p, int64_t m, int64_t n, int64_t k) {
    const double per_unit = p->simd == &gcudai_simd_scalar ? 1.0 : p->path == GCUDAI_MM_Q_PANEL ? 32.0 : p->path == GCUDAI_MM_GEMM ? 12.0 : 6.0;
    return (double) GCUDAI_MIN(m, p->mt) * (double) GCUDAI_MIN(n, p->nt) * (double) k / per_unit + 200.0;
}

// One column (for GEMM: quad) of activations; column i of b counts dimensions 1, 2, 3 in this order.
static void gcudai_mm_prepare(const struct gcudai_mm_plan * p, const struct gcuda_array * b, int64_t i, char * shared) {
    char * out = shared + (size_t) i * p->col_size;
    if (p->path == GCUDAI_MM_GEMM) {
        const int64_t quads = (b->ne[1] + 3) / 4, j = i % quads * 4, matrix = i / quads;
        const char * x = gcudai_at(b, j, matrix % b->ne[2], matrix / b->ne[2]);
        gcudai_pack_quad(b->type, x, b->nb[0], b->nb[1], b->ne[1] - j, b->ne[0], (float *) (void *) out);
    } else if (p->path == GCUDAI_MM_DOT) {
        gcudai_f32_column(b->type, gcudai_row(b, i), b->nb[0], b->ne[0], out);
    } else {
        gcudai_q_pack_column(p->simd, b->type, gcudai_row(b, i), b->nb[0], b->ne[0], out);
    }
}

static void gcudai_mm_tile(enum gcudai_mm_path path, const struct gcudai_mm_rows * rows, const struct gcudai_mm_cols * cols, char * local) {
    if (path == GCUDAI_MM_DOT) {
        gcudai_mm_dot_tile(rows, cols, (struct gcudai_dot_local *) (void *) local);
    } else if (path == GCUDAI_MM_Q_DOT) {
        gcudai_mm_q_dot_tile(rows, cols, (struct gcudai_q_local *) (void *) local);
    } else {
        gcudai_mm_q_panel_tile(rows, cols, (struct gcudai_q_panel_local *) (void *) local);
    }
}

// The matrices of b that meet one of a are one long row of columns, except for GEMM, which packs each by itself.
static struct gcudai_mm_plan gcudai_mul_mat_plan(const struct gcuda_array * a, const struct gcuda_array * b) {
    struct gcudai_mm_plan p;
    const int64_t n = b->ne[1], k = b->ne[0], matrices = b->ne[2] * b->ne[3], shared = n * (matrices / (a->ne[2] * a->ne[3]));
    GCUDAI_ZERO(p);
    p.simd = gcudai_simd_now();
    p.path = gcudai_mm_choose(p.simd, a->type, a->ne[1], n, shared, k);
    p.converts = p.path != GCUDAI_MM_DOT || b->type != GCUDA_TYPE_F32;
    p.col_size = gcudai_mm_col_size(p.path, k);
    p.n_prepare = p.path == GCUDAI_MM_GEMM ? (n + 3) / 4 * matrices : n * matrices;
    p.n_matrices = p.path == GCUDAI_MM_GEMM ? matrices : a->ne[2] * a->ne[3];
    p.n = p.path == GCUDAI_MM_GEMM ? n : shared;
    gcudai_mm_tiles(&p, a->ne[1], p.n, k);
    return p;
}

static void gcudai_mul_mat_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    const struct gcuda_array a = gcudai_array(y->src[0]), b = gcudai_array(y->src[1]);
    const struct gcudai_mm_plan p = gcudai_mul_mat_plan(&a, &b);
    int phase = 0;
    if (p.converts) {
        w->n_items[phase] = p.n_prepare;
        w->item_cost[phase++] = 100.0 + (double) b.ne[0] * (p.path == GCUDAI_MM_GEMM ? 8.0 : 2.0);
        if (!gcudai_mul_size(p.col_size, (size_t) p.n_prepare, &w->shared_bytes)) { w->shared_bytes = SIZE_MAX; }
    }
    w->n_items[phase] = p.n_matrices * p.m_tiles * p.n_tiles;
    w->item_cost[phase++] = gcudai_mm_tile_cost(&p, a.ne[1], p.n, a.ne[0]);
    w->n_phases = phase;
    w->local_bytes = gcudai_mm_local_bytes(p.path);
}

// Columns [c0, c1) of those that meet matrix (a2, a3) of a: dimension 1 of b first, then its share of 2 and 3.
static void gcudai_mul_mat_cols(const struct gcuda_mul_mat_args * p, const struct gcudai_mm_plan * plan, int64_t a2, int64_t a3,
                                int64_t c0, int64_t c1, char * shared, struct gcudai_mm_cols * cols) {
    const int64_t n = p->b.ne[1], r2 = p->b.ne[2] / p->a.ne[2], r3 = p->b.ne[3] / p->a.ne[3];
    cols->n = (int) (c1 - c0);
    for (int64_t c = c0; c < c1; ++c) {
        const int64_t i1 = c % n, i2 = a2 * r2 + c / n % r2, i3 = a3 * r3 + c / n / r2;
        const int64_t index = (i3 * p->b.ne[2] + i2) * n + i1;
        cols->x[c - c0] = plan->converts ? shared + (size_t) index * plan->col_size : gcudai_at(&p->b, i1, i2, i3);
        cols->y[c - c0] = (float *) (void *) gcudai_at(&p->y, i1, i2, i3);
    }
}

static void gcudai_mul_mat_gemm(const struct gcuda_mul_mat_args * p, const struct gcudai_mm_plan * plan, int64_t matrix,
                                int64_t m0, int64_t n0, const struct gcudai_task * t) {
    const int64_t i2 = matrix % p->b.ne[2], i3 = matrix / p->b.ne[2];
    struct gcudai_gemm g;
    GCUDAI_ZERO(g);
    g.type = p->a.type;
    g.a = gcudai_at(&p->a, 0, i2 / (p->b.ne[2] / p->a.ne[2]), i3 / (p->b.ne[3] / p->a.ne[3]));
    g.a_nb = p->a.nb[1];
    g.a_nb0 = p->a.nb[0];
    g.b = (const float *) (const void *) (t->shared + (size_t) (matrix * ((p->b.ne[1] + 3) / 4)) * plan->col_size);
    g.c = (float *) (void *) gcudai_at(&p->y, 0, i2, i3);
    g.ldc = (int64_t) (p->y.nb[1] / sizeof(float));
    g.m = p->a.ne[1];
    g.n = p->b.ne[1];
    g.k = p->a.ne[0];
    gcudai_gemm_tile(plan->simd, &g, m0, GCUDAI_MIN(m0 + plan->mt, g.m), n0, GCUDAI_MIN(n0 + plan->nt, g.n),
                     (struct gcudai_gemm_local *) (void *) t->local);
}

static void gcudai_mul_mat_item(const struct gcuda_mul_mat_args * p, const struct gcudai_mm_plan * plan, int64_t item, const struct gcudai_task * t) {
    const int64_t m0 = item % plan->m_tiles * plan->mt, n0 = item / plan->m_tiles % plan->n_tiles * plan->nt;
    const int64_t matrix = item / plan->m_tiles / plan->n_tiles, a2 = matrix % p->a.ne[2], a3 = matrix / p->a.ne[2];
    struct gcudai_mm_rows rows;
    struct gcudai_mm_cols cols;
    if (plan->path == GCUDAI_MM_GEMM) {
        gcudai_mul_mat_gemm(p, plan, matrix, m0, n0, t);
        return;
    }
    rows.simd = plan->simd;
    rows.type = p->a.type;
    rows.w = gcudai_at(&p->a, 0, a2, a3);
    rows.nb = p->a.nb[1];
    rows.m0 = m0;
    rows.m1 = GCUDAI_MIN(m0 + plan->mt, p->a.ne[1]);
    rows.k = p->a.ne[0];
    gcudai_mul_mat_cols(p, plan, a2, a3, n0, GCUDAI_MIN(n0 + plan->nt, plan->n), t->shared, &cols);
    gcudai_mm_tile(plan->path, &rows, &cols, t->local);
}

static void gcudai_mul_mat_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_mul_mat_args * p = &args->mul_mat;
    const struct gcudai_mm_plan plan = gcudai_mul_mat_plan(&p->a, &p->b);
    for (int64_t i = t->i0; i < t->i1; ++i) {
        if (plan.converts && t->phase == 0) {
            gcudai_mm_prepare(&plan, &p->b, i, t->shared);
        } else {
            gcudai_mul_mat_item(p, &plan, i, t);
        }
    }
}

// >>op:mul_mat_id -------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_mul_mat_id(struct gcuda_context * ctx, struct gcuda_tensor * as, struct gcuda_tensor * b, struct gcuda_tensor * ids) {
    struct gcuda_tensor * src[] = { as, b, ids };
    if (!gcudai_op_begin(ctx, GCUDA_OP_MUL_MAT_ID, src, 3)) { return NULL; }
    const int64_t ne[4] = { as->ne[1], ids->ne[0], b->ne[2], 1 };
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_MUL_MAT_ID, GCUDA_TYPE_F32, ne, src, 3);
    return gcudai_op_finish(ctx, y);
}

static gcuda_status gcudai_mul_mat_id_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * as = y->src[0], * b = y->src[1], * ids = y->src[2];
    GCUDAI_TRY(gcudai_mul_mat_types(y, as, b));
    GCUDAI_TRY(gcudai_want_type(y, ids, GCUDA_TYPE_I32));
    GCUDAI_TRY(gcudai_want_rows(y, ids));
    GCUDAI_WANT(y, as->ne[3] == 1 && b->ne[3] == 1 && ids->ne[2] == 1 && ids->ne[3] == 1, "experts and activations have three dimensions, ids two");
    GCUDAI_WANT(y, ids->ne[1] == b->ne[2], "ids are of %lld tokens, activations of %lld", (long long) ids->ne[1], (long long) b->ne[2]);
    GCUDAI_WANT(y, gcudai_mul_mat_divides(b->ne[1], ids->ne[0]), "%lld experts per token are no multiple of %lld activations",
                (long long) ids->ne[0], (long long) b->ne[1]);
    return gcudai_want_shape(y, as->ne[1], ids->ne[0], ids->ne[1], 1);
}

static void gcudai_mul_mat_id_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->mul_mat_id.as = gcudai_array(y->src[0]);
    args->mul_mat_id.b = gcudai_array(y->src[1]);
    args->mul_mat_id.ids = gcudai_array(y->src[2]);
    args->mul_mat_id.y = gcudai_array(y);
}

// Phase 0 prepares the activations and, as its last item, sorts the slots (u, t) by expert and cuts each expert's into
// tiles of columns. Phase 1 does the products of tiles; there is room for as many as there can be.
struct gcudai_id_tile {
    int64_t expert, first, n; // slots order[first .. first + n)
};

struct gcudai_id_plan {
    struct gcudai_mm_plan mm;
    int64_t n_slots, max_tiles;
    size_t order_at, tiles_at, starts_at, bytes; // offsets into the shared scratch
};

static struct gcudai_id_plan gcudai_mul_mat_id_plan(const struct gcuda_array * as, const struct gcuda_array * b, const struct gcuda_array * ids) {
    struct gcudai_id_plan p;
    size_t n = 0;
    GCUDAI_ZERO(p);
    p.n_slots = ids->ne[0] * ids->ne[1];
    p.mm.simd = gcudai_simd_now();
    p.mm.path = gcudai_is_float(as->type) || as->ne[1] < 16 ? GCUDAI_MM_DOT : p.mm.simd->q_panel != NULL ? GCUDAI_MM_Q_PANEL : GCUDAI_MM_Q_DOT;
    p.mm.converts = p.mm.path != GCUDAI_MM_DOT || b->type != GCUDA_TYPE_F32;
    p.mm.col_size = gcudai_mm_col_size(p.mm.path, b->ne[0]);
    p.mm.n_prepare = p.mm.converts ? b->ne[1] * b->ne[2] : 0;
    gcudai_mm_tiles(&p.mm, as->ne[1], p.n_slots, b->ne[0]);
    p.max_tiles = p.n_slots / p.mm.nt + GCUDAI_MIN(p.n_slots, as->ne[2]);
    const bool fits = gcudai_mul_size(p.mm.col_size, (size_t) p.mm.n_prepare, &p.order_at) && p.order_at < SIZE_MAX / 4 &&
                      gcudai_mul_size((size_t) p.n_slots + 1, 6 * sizeof(int64_t), &n) && n < SIZE_MAX / 4 &&
                      gcudai_mul_size((size_t) as->ne[2] + 2, sizeof(int64_t), &n) && n < SIZE_MAX / 4;
    if (!fits) {
        p.bytes = SIZE_MAX;
        return p;
    }
    p.tiles_at = p.order_at + (size_t) p.n_slots * sizeof(int64_t);
    p.starts_at = p.tiles_at + (size_t) (p.max_tiles + 1) * sizeof(struct gcudai_id_tile); // one more: the end mark
    p.bytes = p.starts_at + ((size_t) as->ne[2] + 1) * sizeof(int64_t);
    return p;
}

static void gcudai_mul_mat_id_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    const struct gcuda_array as = gcudai_array(y->src[0]), b = gcudai_array(y->src[1]), ids = gcudai_array(y->src[2]);
    const struct gcudai_id_plan p = gcudai_mul_mat_id_plan(&as, &b, &ids);
    const int64_t per_expert = p.n_slots / (as.ne[2] > 0 ? as.ne[2] : 1) + 1;
    w->n_phases = 2;
    w->n_items[0] = p.mm.n_prepare + 1;
    w->item_cost[0] = 100.0 + (double) b.ne[0] * 2.0;
    w->n_items[1] = p.max_tiles * p.mm.m_tiles;
    w->item_cost[1] = gcudai_mm_tile_cost(&p.mm, as.ne[1], per_expert, as.ne[0]);
    w->shared_bytes = p.bytes;
    w->local_bytes = GCUDAI_MAX(gcudai_mm_local_bytes(p.mm.path), sizeof(struct gcudai_q_local));
}

static int32_t gcudai_mul_mat_id_of(const struct gcuda_mul_mat_id_args * p, int64_t slot) {
    int32_t id;
    memcpy(&id, gcudai_at(&p->ids, slot / p->ids.ne[0], 0, 0) + (size_t) (slot % p->ids.ne[0]) * sizeof(id), sizeof(id));
    return id;
}

static float * gcudai_mul_mat_id_y(const struct gcuda_mul_mat_id_args * p, int64_t slot) {
    return (float *) (void *) gcudai_at(&p->y, slot % p->ids.ne[0], slot / p->ids.ne[0], 0);
}

// Slots in order of their experts, by counting; a slot with a bad id gets its zero row here.
static void gcudai_mul_mat_id_group(const struct gcuda_mul_mat_id_args * p, const struct gcudai_id_plan * plan, const struct gcudai_task * t) {
    int64_t * order = (int64_t *) (void *) (t->shared + plan->order_at);
    int64_t * starts = (int64_t *) (void *) (t->shared + plan->starts_at);
    struct gcudai_id_tile * tile = (struct gcudai_id_tile *) (void *) (t->shared + plan->tiles_at);
    const int64_t n_experts = p->as.ne[2];
    memset(starts, 0, ((size_t) n_experts + 1) * sizeof(int64_t));
    for (int64_t s = 0; s < plan->n_slots; ++s) {
        const int32_t id = gcudai_mul_mat_id_of(p, s);
        if (id >= 0 && id < n_experts) {
            ++starts[id + 1];
        } else {
            gcudai_bad_index(t, s, id, n_experts);
            memset(gcudai_mul_mat_id_y(p, s), 0, (size_t) p->y.ne[0] * sizeof(float));
        }
    }
    for (int64_t e = 0; e < n_experts; ++e) {
        for (int64_t i = 0; i < starts[e + 1]; i += plan->mm.nt, ++tile) {
            tile->expert = e;
            tile->first = starts[e] + i;
            tile->n = GCUDAI_MIN(starts[e + 1] - i, plan->mm.nt);
        }
        starts[e + 1] += starts[e];
    }
    tile->n = 0;
    for (int64_t s = 0; s < plan->n_slots; ++s) {
        const int32_t id = gcudai_mul_mat_id_of(p, s);
        if (id >= 0 && id < n_experts) { order[starts[id]++] = s; }
    }
}

static void gcudai_mul_mat_id_item(const struct gcuda_mul_mat_id_args * p, const struct gcudai_id_plan * plan, int64_t m0,
                                   const struct gcudai_id_tile * tile, const struct gcudai_task * t) {
    const int64_t * order = (const int64_t *) (const void *) (t->shared + plan->order_at) + tile->first;
    struct gcudai_mm_rows rows;
    struct gcudai_mm_cols cols;
    rows.simd = plan->mm.simd;
    rows.type = p->as.type;
    rows.w = gcudai_at(&p->as, 0, tile->expert, 0);
    rows.nb = p->as.nb[1];
    rows.m0 = m0;
    rows.m1 = GCUDAI_MIN(m0 + plan->mm.mt, p->as.ne[1]);
    rows.k = p->as.ne[0];
    cols.n = (int) tile->n;
    for (int64_t i = 0; i < tile->n; ++i) {
        const int64_t u = order[i] % p->ids.ne[0] % p->b.ne[1], token = order[i] / p->ids.ne[0];
        cols.x[i] = plan->mm.converts ? t->shared + (size_t) (token * p->b.ne[1] + u) * plan->mm.col_size : gcudai_at(&p->b, u, token, 0);
        cols.y[i] = gcudai_mul_mat_id_y(p, order[i]);
    }
    const bool few = plan->mm.path == GCUDAI_MM_Q_PANEL && tile->n < 16;
    gcudai_mm_tile(few ? GCUDAI_MM_Q_DOT : plan->mm.path, &rows, &cols, t->local);
}

// Items run over row tiles first. The list of tiles ends with an empty one; items behind it have nothing to do.
static void gcudai_mul_mat_id_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_mul_mat_id_args * p = &args->mul_mat_id;
    const struct gcudai_id_plan plan = gcudai_mul_mat_id_plan(&p->as, &p->b, &p->ids);
    const struct gcudai_id_tile * tiles = (const struct gcudai_id_tile *) (const void *) (t->shared + plan.tiles_at);
    int64_t n_tiles = 0;
    while (t->phase == 1 && n_tiles < plan.max_tiles && tiles[n_tiles].n > 0) { ++n_tiles; }
    for (int64_t i = t->i0; i < t->i1; ++i) {
        if (t->phase == 1 && i / plan.mm.m_tiles < n_tiles) {
            gcudai_mul_mat_id_item(p, &plan, i % plan.mm.m_tiles * plan.mm.mt, tiles + i / plan.mm.m_tiles, t);
        } else if (t->phase == 0 && i < plan.mm.n_prepare) {
            gcudai_mm_prepare(&plan.mm, &p->b, i, t->shared);
        } else if (t->phase == 0) {
            gcudai_mul_mat_id_group(p, &plan, t);
        }
    }
}

// >>op:out_prod ---------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_out_prod(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    struct gcuda_tensor * src[] = { a, b };
    if (!gcudai_op_begin(ctx, GCUDA_OP_OUT_PROD, src, 2)) { return NULL; }
    const int64_t ne[4] = { a->ne[0], b->ne[0], b->ne[2], b->ne[3] };
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_OUT_PROD, GCUDA_TYPE_F32, ne, src, 2);
    return gcudai_op_finish(ctx, y);
}

static gcuda_status gcudai_out_prod_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * a = y->src[0], * b = y->src[1];
    GCUDAI_WANT(y, gcudai_is_float(a->type) || gcudai_is_weight(a->type), "first operand is %s, want F32, F16, BF16 or a quantized weight type",
                gcuda_type_name(a->type));
    GCUDAI_TRY(gcudai_want_float(y, b));
    GCUDAI_TRY(gcudai_want_type(y, y, GCUDA_TYPE_F32));
    GCUDAI_TRY(gcudai_want_contiguous(y, y));
    if (!gcudai_is_float(a->type)) { GCUDAI_TRY(gcudai_want_rows(y, a)); }
    GCUDAI_WANT(y, a->ne[0] % gcuda_blck_size(a->type) == 0, "rows of %lld elements are no whole number of blocks", (long long) a->ne[0]);
    GCUDAI_WANT(y, a->ne[1] == b->ne[1], "dimension 1 is %lld and %lld", (long long) a->ne[1], (long long) b->ne[1]);
    GCUDAI_WANT(y, gcudai_mul_mat_divides(a->ne[2], b->ne[2]) && gcudai_mul_mat_divides(a->ne[3], b->ne[3]),
                "dimensions 2 and 3 of the second operand are no multiples of the first's");
    return gcudai_want_shape(y, a->ne[0], b->ne[0], b->ne[2], b->ne[3]);
}

static void gcudai_out_prod_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->out_prod.a = gcudai_array(y->src[0]);
    args->out_prod.b = gcudai_array(y->src[1]);
    args->out_prod.y = gcudai_array(y);
}

// The panels of the matrix product, packed along the other dimension: a row of a holds one t for all i.
static struct gcudai_mm_plan gcudai_out_prod_plan(const struct gcuda_array * a, const struct gcuda_array * b) {
    struct gcudai_mm_plan p;
    GCUDAI_ZERO(p);
    p.simd = gcudai_simd_now();
    p.path = GCUDAI_MM_GEMM;
    p.converts = true;
    p.n = b->ne[0];
    p.n_matrices = b->ne[2] * b->ne[3];
    p.n_prepare = (p.n + 3) / 4 * p.n_matrices;
    p.col_size = gcudai_mm_col_size(p.path, b->ne[1]);
    gcudai_mm_tiles(&p, a->ne[0], p.n, b->ne[1]);
    if (!gcudai_is_float(a->type)) {
        p.mt = GCUDAI_GEMM_MT_BLOCKS;
        p.m_tiles = (a->ne[0] + p.mt - 1) / p.mt;
    }
    return p;
}

static void gcudai_out_prod_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    const struct gcuda_array a = gcudai_array(y->src[0]), b = gcudai_array(y->src[1]);
    const struct gcudai_mm_plan p = gcudai_out_prod_plan(&a, &b);
    w->n_phases = 2;
    w->n_items[0] = p.n_prepare;
    w->item_cost[0] = 100.0 + 8.0 * (double) b.ne[1];
    w->n_items[1] = p.n_matrices * p.m_tiles * p.n_tiles;
    w->item_cost[1] = gcudai_mm_tile_cost(&p, a.ne[0], p.n, a.ne[1]);
    if (!gcudai_mul_size(p.col_size, (size_t) p.n_prepare, &w->shared_bytes)) { w->shared_bytes = SIZE_MAX; }
    w->local_bytes = gcudai_mm_local_bytes(p.path);
}

static void gcudai_out_prod_prepare(const struct gcuda_out_prod_args * p, const struct gcudai_mm_plan * plan, int64_t i, char * shared) {
    const int64_t quads = (plan->n + 3) / 4, j = i % quads * 4, matrix = i / quads;
    const char * x = gcudai_at(&p->b, 0, matrix % p->b.ne[2], matrix / p->b.ne[2]) + (size_t) j * p->b.nb[0];
    gcudai_pack_quad(p->b.type, x, p->b.nb[1], p->b.nb[0], plan->n - j, p->b.ne[1], (float *) (void *) (shared + (size_t) i * plan->col_size));
}

static void gcudai_out_prod_item(const struct gcuda_out_prod_args * p, const struct gcudai_mm_plan * plan, int64_t item, const struct gcudai_task * t) {
    const int64_t m0 = item % plan->m_tiles * plan->mt, n0 = item / plan->m_tiles % plan->n_tiles * plan->nt;
    const int64_t matrix = item / plan->m_tiles / plan->n_tiles, i2 = matrix % p->b.ne[2], i3 = matrix / p->b.ne[2];
    struct gcudai_gemm g;
    GCUDAI_ZERO(g);
    g.type = p->a.type;
    g.a = gcudai_at(&p->a, 0, i2 / (p->b.ne[2] / p->a.ne[2]), i3 / (p->b.ne[3] / p->a.ne[3]));
    g.a_nb = p->a.nb[1];
    g.a_nb0 = p->a.nb[0];
    g.a_by_k = true;
    g.b = (const float *) (const void *) (t->shared + (size_t) (matrix * ((plan->n + 3) / 4)) * plan->col_size);
    g.c = (float *) (void *) gcudai_at(&p->y, 0, i2, i3);
    g.ldc = (int64_t) (p->y.nb[1] / sizeof(float));
    g.m = p->a.ne[0];
    g.n = plan->n;
    g.k = p->a.ne[1];
    gcudai_gemm_tile(plan->simd, &g, m0, GCUDAI_MIN(m0 + plan->mt, g.m), n0, GCUDAI_MIN(n0 + plan->nt, g.n),
                     (struct gcudai_gemm_local *) (void *) t->local);
}

static void gcudai_out_prod_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_out_prod_args * p = &args->out_prod;
    const struct gcudai_mm_plan plan = gcudai_out_prod_plan(&p->a, &p->b);
    for (int64_t i = t->i0; i < t->i1; ++i) {
        if (t->phase == 0) {
            gcudai_out_prod_prepare(p, &plan, i, t->shared);
        } else {
            gcudai_out_prod_item(p, &plan, i, t);
        }
    }
}

// ---------------- end of mulmat ----------------

// ---------------- ops-c: attention, convolution, pooling, resampling, recurrent ----------------

// One element of F32, F16 or BF16.
static float gcudai_float_at(enum gcuda_type type, const char * p) {
    float f;
    gcuda_fp16_t h;
    gcuda_bf16_t b;
    if (type == GCUDA_TYPE_F32) {
        memcpy(&f, p, sizeof(f));
        return f;
    }
    if (type == GCUDA_TYPE_F16) {
        memcpy(&h, p, sizeof(h));
        return gcuda_fp16_to_fp32(h);
    }
    memcpy(&b, p, sizeof(b));
    return gcuda_bf16_to_fp32(b);
}

// n adjacent elements as floats: where they are if they are F32, else in buf.
static const float * gcudai_floats(enum gcuda_type type, const char * p, int64_t n, float * buf) {
    if (type == GCUDA_TYPE_F32) {
        return (const float *) (const void *) p;
    }
    gcudai_to_float(type)(p, buf, n);
    return buf;
}

// a * b * c * d, or -1, which no shape accepts, when that is too large.
static int64_t gcudai_product(int64_t a, int64_t b, int64_t c, int64_t d) {
    int64_t n = 0;
    return gcudai_mul_i64(a, b, &n) && gcudai_mul_i64(n, c, &n) && gcudai_mul_i64(n, d, &n) ? n : -1;
}

// Part of a row of a result: an item of most operations below. At most GCUDAI_PIECE elements, fewer where one is costly.
struct gcudai_stretch {
    int64_t i0, n, i1, i2, i3;
};

#define GCUDAI_STRETCH_COST 1e6

static int64_t gcudai_stretch_len(double element_cost) {
    const double n = GCUDAI_STRETCH_COST / element_cost;
    return n >= GCUDAI_PIECE ? GCUDAI_PIECE : n > 1.0 ? (int64_t) n : 1;
}

static void gcudai_stretch_split(const int64_t * ne, double element_cost, struct gcudai_work * w, int phase) {
    const int64_t len = gcudai_stretch_len(element_cost);
    w->n_items[phase] = ne[1] * ne[2] * ne[3] * ((ne[0] + len - 1) / len);
    w->item_cost[phase] = 30.0 + element_cost * (double) GCUDAI_MIN(len, ne[0]);
}

static struct gcudai_stretch gcudai_stretch_of(const int64_t * ne, double element_cost, int64_t item) {
    const int64_t len = gcudai_stretch_len(element_cost), per_row = (ne[0] + len - 1) / len, row = item / per_row;
    struct gcudai_stretch p;
    p.i0 = item % per_row * len;
    p.n = GCUDAI_MIN(len, ne[0] - p.i0);
    p.i1 = row % ne[1];
    p.i2 = row / ne[1] % ne[2];
    p.i3 = row / ne[1] / ne[2];
    return p;
}

static void gcudai_stretch_store(const struct gcuda_array * y, const struct gcudai_stretch * p, const float * values) {
    gcudai_store(y->type, gcudai_at(y, p->i1, p->i2, p->i3) + (size_t) p->i0 * y->nb[0], y->nb[0], p->n, values);
}

// Loops that a plain -O2 build turns into vector code because their counts are constant; again for AVX2.
#define GCUDAI_LANES 16

static GCUDAI_INLINE float gcudai_lane_dot_body(const float * GCUDAI_RESTRICT a, const float * GCUDAI_RESTRICT b, int64_t n) {
    float s[GCUDAI_LANES], sum = 0.0f;
    int64_t i = 0;
    for (int l = 0; l < GCUDAI_LANES; ++l) {
        s[l] = 0.0f;
    }
    for (; i + GCUDAI_LANES <= n; i += GCUDAI_LANES) {
        for (int l = 0; l < GCUDAI_LANES; ++l) {
            s[l] += a[i + l] * b[i + l];
        }
    }
    for (int l = 0; l < GCUDAI_LANES; ++l) {
        sum += s[l];
    }
    for (; i < n; ++i) {
        sum += a[i] * b[i];
    }
    return sum;
}

// y += w[0] * x[0] + .. + w[3] * x[3], rows of n
static GCUDAI_INLINE void gcudai_lane_add4_body(float * GCUDAI_RESTRICT y, const float * const * x, const float * w, int64_t n) {
    const float * GCUDAI_RESTRICT x0 = x[0];
    const float * GCUDAI_RESTRICT x1 = x[1];
    const float * GCUDAI_RESTRICT x2 = x[2];
    const float * GCUDAI_RESTRICT x3 = x[3];
    const float w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
    int64_t i = 0;
    for (; i + GCUDAI_LANES <= n; i += GCUDAI_LANES) {
        for (int l = 0; l < GCUDAI_LANES; ++l) {
            y[i + l] += (w0 * x0[i + l] + w1 * x1[i + l]) + (w2 * x2[i + l] + w3 * x3[i + l]);
        }
    }
    for (; i < n; ++i) {
        y[i] += (w0 * x0[i] + w1 * x1[i]) + (w2 * x2[i] + w3 * x3[i]);
    }
}

// y[j] += sum_k w[k] * x[k][j] for rows x of GCUDAI_CONV_PIXELS
#define GCUDAI_CONV_PIXELS 64
static GCUDAI_INLINE void gcudai_lane_taps_body(float * GCUDAI_RESTRICT y, const float * GCUDAI_RESTRICT w, const float * GCUDAI_RESTRICT x, int64_t n) {
    const int64_t m = GCUDAI_CONV_PIXELS;
    int64_t k = 0;
    for (; k + 4 <= n; k += 4, x += 4 * m) {
        const float w0 = w[k], w1 = w[k + 1], w2 = w[k + 2], w3 = w[k + 3];
        for (int64_t j = 0; j < GCUDAI_CONV_PIXELS; ++j) {
            y[j] += (w0 * x[j] + w1 * x[m + j]) + (w2 * x[2 * m + j] + w3 * x[3 * m + j]);
        }
    }
    for (; k < n; ++k, x += m) {
        const float w0 = w[k];
        for (int64_t j = 0; j < GCUDAI_CONV_PIXELS; ++j) {
            y[j] += w0 * x[j];
        }
    }
}

typedef float (*gcudai_lane_dot_fn)(const float * a, const float * b, int64_t n);
typedef void (*gcudai_lane_add4_fn)(float * y, const float * const * x, const float * w, int64_t n);
typedef void (*gcudai_lane_taps_fn)(float * y, const float * w, const float * x, int64_t n);

static float gcudai_lane_dot_any(const float * a, const float * b, int64_t n) { return gcudai_lane_dot_body(a, b, n); }
static void gcudai_lane_add4_any(float * y, const float * const * x, const float * w, int64_t n) { gcudai_lane_add4_body(y, x, w, n); }
static void gcudai_lane_taps_any(float * y, const float * w, const float * x, int64_t n) { gcudai_lane_taps_body(y, w, x, n); }

#if GCUDAI_HAVE_X86_SIMD
GCUDAI_TARGET_AVX2 static float gcudai_lane_dot_avx2(const float * a, const float * b, int64_t n) { return gcudai_lane_dot_body(a, b, n); }
GCUDAI_TARGET_AVX2 static void gcudai_lane_add4_avx2(float * y, const float * const * x, const float * w, int64_t n) { gcudai_lane_add4_body(y, x, w, n); }
GCUDAI_TARGET_AVX2 static void gcudai_lane_taps_avx2(float * y, const float * w, const float * x, int64_t n) { gcudai_lane_taps_body(y, w, x, n); }
static bool gcudai_lane_is_avx2(void) { return gcudai_cpu_has(GCUDAI_CPU_AVX2 | GCUDAI_CPU_FMA | GCUDAI_CPU_F16C); }
#else
#define gcudai_lane_dot_avx2 gcudai_lane_dot_any
#define gcudai_lane_add4_avx2 gcudai_lane_add4_any
#define gcudai_lane_taps_avx2 gcudai_lane_taps_any
static bool gcudai_lane_is_avx2(void) { return false; }
#endif

// >>op:flash_attn_ext ---------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_flash_attn_ext(struct gcuda_context * ctx, struct gcuda_tensor * q, struct gcuda_tensor * k, struct gcuda_tensor * v, struct gcuda_tensor * mask, float scale, float max_bias, float logit_softcap) {
    struct gcuda_tensor * src[] = { q, k, v, mask };
    if (!gcudai_op_begin(ctx, GCUDA_OP_FLASH_ATTN_EXT, src, 4)) {
        return NULL;
    }
    const int64_t ne[4] = { v->ne[0], q->ne[2], q->ne[1], q->ne[3] };
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_FLASH_ATTN_EXT, GCUDA_TYPE_F32, ne, src, 4);
    gcudai_set_param_f32(y, 0, scale);
    gcudai_set_param_f32(y, 1, max_bias);
    gcudai_set_param_f32(y, 2, logit_softcap);
    return gcudai_op_finish(ctx, y);
}

static gcuda_status gcudai_want_flash_attn(const struct gcuda_tensor * a, const char * what) {
    if (a == NULL || a->op != GCUDA_OP_FLASH_ATTN_EXT) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "%s: the node is %s", what, a ? gcudai_op_lower(a->op) : "NULL");
    }
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status gcuda_flash_attn_ext_set_prec(struct gcuda_tensor * a, enum gcuda_prec prec) {
    GCUDAI_TRY(gcudai_want_flash_attn(a, "flash_attn_ext_set_prec"));
    if (prec != GCUDA_PREC_DEFAULT && prec != GCUDA_PREC_F32) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "flash_attn_ext_set_prec: precision %d does not exist", (int) prec);
    }
    gcudai_set_param_i32(a, 3, (int32_t) prec);
    return GCUDA_STATUS_SUCCESS;
}

enum gcuda_prec gcuda_flash_attn_ext_get_prec(const struct gcuda_tensor * a) {
    const bool is_ok = gcudai_want_flash_attn(a, "flash_attn_ext_get_prec") == GCUDA_STATUS_SUCCESS;
    return is_ok ? (enum gcuda_prec) gcudai_param_i32(a, 3) : GCUDA_PREC_DEFAULT;
}

gcuda_status gcuda_flash_attn_ext_add_sinks(struct gcuda_tensor * a, struct gcuda_tensor * sinks) {
    GCUDAI_TRY(gcudai_want_flash_attn(a, "flash_attn_ext_add_sinks"));
    struct gcuda_tensor * before = a->src[4];
    a->src[4] = sinks;
    const gcuda_status st = gcudai_check_node(a);
    if (st != GCUDA_STATUS_SUCCESS) {
        a->src[4] = before;
    }
    return st;
}

static bool gcudai_divides(int64_t small, int64_t big) { return small > 0 ? big % small == 0 : big == 0; }

static gcuda_status gcudai_flash_attn_check_kv(const struct gcuda_tensor * y, const struct gcuda_tensor * t) {
    const struct gcuda_tensor * q = y->src[0];
    GCUDAI_WANT(y, gcudai_to_float(t->type) != NULL, "type %s has no float form", gcuda_type_name(t->type));
    GCUDAI_TRY(gcudai_want_rows(y, t));
    GCUDAI_WANT(y, gcudai_divides(t->ne[2], q->ne[2]), "%lld query heads, not a multiple of %lld", (long long) q->ne[2], (long long) t->ne[2]);
    GCUDAI_WANT(y, t->ne[3] == q->ne[3], "%lld sequences in q, %lld in k or v", (long long) q->ne[3], (long long) t->ne[3]);
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_flash_attn_check_mask(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * q = y->src[0];
    const struct gcuda_tensor * mask = y->src[3];
    GCUDAI_TRY(gcudai_want_float(y, mask));
    GCUDAI_TRY(gcudai_want_contiguous(y, mask));
    GCUDAI_WANT(y, mask->ne[0] == y->src[1]->ne[1], "mask has %lld positions, k %lld", (long long) mask->ne[0], (long long) y->src[1]->ne[1]);
    GCUDAI_WANT(y, mask->ne[1] >= q->ne[1], "mask has %lld tokens, q %lld", (long long) mask->ne[1], (long long) q->ne[1]);
    GCUDAI_WANT(y, gcudai_divides(mask->ne[2], q->ne[2]) && gcudai_divides(mask->ne[3], q->ne[3]),
                "heads and sequences of q are not multiples of those of the mask");
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_flash_attn_ext_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * q = y->src[0];
    const struct gcuda_tensor * k = y->src[1];
    const struct gcuda_tensor * v = y->src[2];
    const struct gcuda_tensor * sinks = y->src[4];
    const float scale = gcudai_param_f32(y, 0), max_bias = gcudai_param_f32(y, 1), softcap = gcudai_param_f32(y, 2);
    const int32_t prec = gcudai_param_i32(y, 3);
    GCUDAI_TRY(gcudai_want_float(y, q));
    GCUDAI_TRY(gcudai_want_rows(y, q));
    GCUDAI_TRY(gcudai_flash_attn_check_kv(y, k));
    GCUDAI_TRY(gcudai_flash_attn_check_kv(y, v));
    GCUDAI_WANT(y, q->ne[0] == k->ne[0], "rows of q have %lld elements, of k %lld", (long long) q->ne[0], (long long) k->ne[0]);
    GCUDAI_WANT(y, k->ne[1] == v->ne[1], "%lld positions in k, %lld in v", (long long) k->ne[1], (long long) v->ne[1]);
    if (y->src[3] != NULL) {
        GCUDAI_TRY(gcudai_flash_attn_check_mask(y));
    }
    if (sinks != NULL) {
        GCUDAI_TRY(gcudai_want_type(y, sinks, GCUDA_TYPE_F32));
        GCUDAI_TRY(gcudai_want_contiguous(y, sinks));
        GCUDAI_WANT(y, gcuda_is_vector(sinks) && sinks->ne[0] == q->ne[2], "%lld sinks for %lld heads", (long long) sinks->ne[0], (long long) q->ne[2]);
    }
    GCUDAI_WANT(y, scale - scale == 0.0f && softcap - softcap == 0.0f, "scale %g and softcap %g must be finite", (double) scale, (double) softcap);
    GCUDAI_WANT(y, max_bias >= 0.0f && max_bias - max_bias == 0.0f, "max_bias is %g, want >= 0", (double) max_bias);
    GCUDAI_WANT(y, max_bias == 0.0f || y->src[3] != NULL, "max_bias is %g, and there is no mask", (double) max_bias);
    GCUDAI_WANT(y, prec == GCUDA_PREC_DEFAULT || prec == GCUDA_PREC_F32, "precision %d does not exist", (int) prec);
    GCUDAI_TRY(gcudai_want_type(y, y, GCUDA_TYPE_F32));
    GCUDAI_TRY(gcudai_want_contiguous(y, y));
    return gcudai_want_shape(y, v->ne[0], q->ne[2], q->ne[1], q->ne[3]);
}

static void gcudai_flash_attn_ext_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    struct gcuda_flash_attn_ext_args * p = &args->flash_attn_ext;
    p->q = gcudai_array(y->src[0]);
    p->k = gcudai_array(y->src[1]);
    p->v = gcudai_array(y->src[2]);
    p->mask = gcudai_array(y->src[3]);
    p->sinks = gcudai_array(y->src[4]);
    p->y = gcudai_array(y);
    p->scale = gcudai_param_f32(y, 0);
    p->max_bias = gcudai_param_f32(y, 1);
    p->logit_softcap = gcudai_param_f32(y, 2);
    p->prec = (enum gcuda_prec) gcudai_param_i32(y, 3);
}

// How the work is cut. Neighbouring heads that share k and v form a group; its queries (tokens times heads) are taken in
// blocks, so that a row of k is converted once for all of them. Few queries over many positions are cut along the
// positions instead, and a second phase joins the parts.
#define GCUDAI_ATTN_TILE 16  // positions handled together
#define GCUDAI_ATTN_BLOCK 16 // queries, at most
#define GCUDAI_ATTN_COST 6e6

struct gcudai_attn {
    int64_t dk, dv, n_kv;
    int64_t group, n_groups;        // heads; groups of a sequence
    int64_t n_queries;              // of a group
    int64_t block, n_blocks;        // queries
    int64_t n_kv_part, n_parts;     // positions
};

static struct gcudai_attn gcudai_attn_plan(const struct gcuda_flash_attn_ext_args * p) {
    struct gcudai_attn a;
    int64_t gk = p->q.ne[2] / p->k.ne[2], gv = p->q.ne[2] / p->v.ne[2];
    while (gv != 0) { // greatest common divisor
        const int64_t rest = gk % gv;
        gk = gv;
        gv = rest;
    }
    a.dk = p->q.ne[0];
    a.dv = p->v.ne[0];
    a.n_kv = p->k.ne[1];
    a.group = gk;
    a.n_groups = p->q.ne[2] / gk;
    a.n_queries = p->q.ne[1] * gk;
    const double position = (double) (a.dk + a.dv), all = position * (double) a.n_kv;
    const double fit = all > 0.0 ? GCUDAI_ATTN_COST / all : GCUDAI_ATTN_BLOCK; // queries that fit over all positions
    a.block = a.n_queries <= GCUDAI_ATTN_BLOCK || fit >= GCUDAI_ATTN_BLOCK ? GCUDAI_ATTN_BLOCK : GCUDAI_MAX((int64_t) fit, 1);
    a.block = GCUDAI_MIN(a.block, a.n_queries);
    a.n_blocks = (a.n_queries + a.block - 1) / a.block;
    const double part = GCUDAI_ATTN_COST / (position * (double) a.block);
    a.n_kv_part = part >= (double) a.n_kv ? GCUDAI_MAX(a.n_kv, 1) : GCUDAI_MAX((int64_t) part / GCUDAI_ATTN_TILE, 1) * GCUDAI_ATTN_TILE;
    a.n_parts = a.n_kv > 0 ? (a.n_kv - 1) / a.n_kv_part + 1 : 1;
    return a;
}

static void gcudai_flash_attn_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    union gcudai_args args;
    gcudai_flash_attn_ext_args(y, &args);
    const struct gcudai_attn a = gcudai_attn_plan(&args.flash_attn_ext);
    const size_t block = (size_t) a.block, widest = (size_t) GCUDAI_MAX(a.dk, a.dv);
    w->n_items[0] = y->ne[3] * a.n_groups * a.n_blocks * a.n_parts;
    w->item_cost[0] = 100.0 + (double) (a.dk + a.dv) * (double) a.n_kv_part * ((double) a.block + 2.0) * 0.5;
    w->local_bytes = sizeof(float) * (block * (size_t) (a.dk + a.dv + GCUDAI_ATTN_TILE + 4) + GCUDAI_ATTN_TILE * widest);
    if (a.n_parts > 1) {
        const int64_t n_floats = gcudai_product(y->ne[1] * y->ne[2] * y->ne[3], a.n_parts, a.dv + 2, (int64_t) sizeof(float));
        w->n_phases = 2;
        w->n_items[1] = y->ne[1] * y->ne[2] * y->ne[3];
        w->item_cost[1] = (double) (a.dv + 2) * (double) a.n_parts;
        w->shared_bytes = n_floats < 0 ? SIZE_MAX : (size_t) n_floats;
    }
}

// What one thread keeps about a block of queries.
struct gcudai_attn_block {
    const struct gcuda_flash_attn_ext_args * p;
    struct gcudai_attn a;
    int64_t s, group, q0, n, part; // sequence, group, first query and number of them, part of the positions
    float * q, * acc;              // [block, dk], [block, dv]
    float * w;                     // [block, tile]: bias, then score, then weight
    float * max, * sum, * slope;   // [block]
    float * rows;                  // [tile, max(dk, dv)]: rows of k or v that are not F32
    gcudai_lane_dot_fn dot;
    gcudai_lane_add4_fn add4;
};

static int64_t gcudai_attn_head(const struct gcudai_attn_block * b, int64_t i) { return b->group * b->a.group + (b->q0 + i) % b->a.group; }
static int64_t gcudai_attn_token(const struct gcudai_attn_block * b, int64_t i) { return (b->q0 + i) / b->a.group; }

static void gcudai_attn_begin(struct gcudai_attn_block * b, int64_t item, char * local) {
    const struct gcudai_attn * a = &b->a;
    b->part = item % a->n_parts;
    b->q0 = item / a->n_parts % a->n_blocks * a->block;
    b->group = item / a->n_parts / a->n_blocks % a->n_groups;
    b->s = item / a->n_parts / a->n_blocks / a->n_groups;
    b->n = GCUDAI_MIN(a->block, a->n_queries - b->q0);
    b->q = (float *) (void *) local;
    b->acc = b->q + a->block * a->dk;
    b->w = b->acc + a->block * a->dv;
    b->max = b->w + a->block * GCUDAI_ATTN_TILE;
    b->sum = b->max + a->block;
    b->slope = b->sum + a->block;
    b->rows = b->slope + a->block;
    for (int64_t i = 0; i < b->n; ++i) {
        const int64_t h = gcudai_attn_head(b, i);
        gcudai_to_float(b->p->q.type)(gcudai_at(&b->p->q, gcudai_attn_token(b, i), h, b->s), b->q + i * a->dk, a->dk);
        b->max[i] = -HUGE_VALF;
        b->sum[i] = 0.0f;
        b->slope[i] = gcudai_alibi_slope(b->p->max_bias, b->p->q.ne[2], h);
    }
    for (int64_t i = 0; i < b->n * a->dv; ++i) {
        b->acc[i] = 0.0f;
    }
}

// Biases of n positions from j0; -inf marks what is left out from here on.
static void gcudai_attn_bias(struct gcudai_attn_block * b, int64_t j0, int64_t n) {
    const struct gcuda_array * mask = &b->p->mask;
    for (int64_t i = 0; i < b->n; ++i) {
        float * w = b->w + i * GCUDAI_ATTN_TILE;
        if (mask->data == NULL) {
            for (int64_t j = 0; j < n; ++j) {
                w[j] = 0.0f;
            }
            continue;
        }
        const int64_t h = gcudai_attn_head(b, i);
        const char * row = gcudai_at(mask, gcudai_attn_token(b, i), h % mask->ne[2], b->s % mask->ne[3]);
        gcudai_load(mask->type, row + (size_t) j0 * mask->nb[0], mask->nb[0], n, w);
        for (int64_t j = 0; j < n; ++j) {
            w[j] = w[j] == -HUGE_VALF ? -HUGE_VALF : w[j] * b->slope[i]; // a slope may have vanished
        }
    }
}

static bool gcudai_attn_is_used(const struct gcudai_attn_block * b, int64_t j, float nothing) {
    for (int64_t i = 0; i < b->n; ++i) {
        if (b->w[i * GCUDAI_ATTN_TILE + j] != nothing) {
            return true;
        }
    }
    return false;
}

static void gcudai_attn_scores(struct gcudai_attn_block * b, int64_t j0, int64_t n) {
    const struct gcuda_flash_attn_ext_args * p = b->p;
    const int64_t hk = b->group * b->a.group / (p->q.ne[2] / p->k.ne[2]);
    for (int64_t j = 0; j < n; ++j) {
        if (!gcudai_attn_is_used(b, j, -HUGE_VALF)) {
            continue;
        }
        const float * k = gcudai_floats(p->k.type, gcudai_at(&p->k, j0 + j, hk, b->s), b->a.dk, b->rows);
        for (int64_t i = 0; i < b->n; ++i) {
            float * w = b->w + i * GCUDAI_ATTN_TILE + j;
            if (*w != -HUGE_VALF) {
                const float x = b->dot(b->q + i * b->a.dk, k, b->a.dk) * p->scale;
                *w += p->logit_softcap == 0.0f ? x : p->logit_softcap * tanhf(x / p->logit_softcap);
            }
        }
    }
}

// Scores become weights relative to the largest score so far; what was summed before is scaled to match.
static void gcudai_attn_weights(struct gcudai_attn_block * b, int64_t n) {
    for (int64_t i = 0; i < b->n; ++i) {
        float * w = b->w + i * GCUDAI_ATTN_TILE;
        float * acc = b->acc + i * b->a.dv;
        float max = b->max[i], sum = 0.0f;
        for (int64_t j = 0; j < n; ++j) {
            max = w[j] > max ? w[j] : max;
        }
        if (max > b->max[i] && b->max[i] != -HUGE_VALF) {
            const float shrink = expf(b->max[i] - max);
            b->sum[i] *= shrink;
            for (int64_t d = 0; d < b->a.dv; ++d) {
                acc[d] *= shrink;
            }
        }
        for (int64_t j = 0; j < n; ++j) {
            w[j] = w[j] == -HUGE_VALF ? 0.0f : expf(w[j] - max);
            sum += w[j];
        }
        b->max[i] = max;
        b->sum[i] += sum;
    }
}

static void gcudai_attn_values(struct gcudai_attn_block * b, int64_t j0, int64_t n) {
    const struct gcuda_flash_attn_ext_args * p = b->p;
    const int64_t hv = b->group * b->a.group / (p->q.ne[2] / p->v.ne[2]), dv = b->a.dv;
    const float * row[GCUDAI_ATTN_TILE];
    for (int64_t j = 0; j < n; ++j) {
        row[j] = NULL;
        if (gcudai_attn_is_used(b, j, 0.0f)) {
            row[j] = gcudai_floats(p->v.type, gcudai_at(&p->v, j0 + j, hv, b->s), dv, b->rows + j * dv);
        }
    }
    for (int64_t i = 0; i < b->n; ++i) {
        const float * all = b->w + i * GCUDAI_ATTN_TILE;
        const float * v[4];
        float w[4];
        int m = 0;
        for (int64_t j = 0; j < n; ++j) {
            if (all[j] != 0.0f) { // a value without weight may be anything, NaN too
                v[m] = row[j];
                w[m] = all[j];
                m = (m + 1) % 4;
                if (m == 0) {
                    b->add4(b->acc + i * dv, v, w, dv);
                }
            }
        }
        for (int k = 0; k < m; ++k) {
            for (int64_t d = 0; d < dv; ++d) {
                b->acc[i * dv + d] += w[k] * v[k][d];
            }
        }
    }
}

// The sum and its weights become the answer of query i. Nothing attended to: zeros, with a sink too.
static void gcudai_attn_store(const struct gcuda_flash_attn_ext_args * p, int64_t token, int64_t h, int64_t s, const float * acc, float max, float sum) {
    float * y = (float *) (void *) gcudai_at(&p->y, h, token, s);
    float scale = max == -HUGE_VALF && sum == 0.0f ? 0.0f : 1.0f / sum;
    if (p->sinks.data != NULL && scale != 0.0f) {
        const float sink = ((const float *) p->sinks.data)[h], top = sink > max ? sink : max;
        const float shrink = expf(max - top);
        scale = shrink / (sum * shrink + expf(sink - top));
    }
    for (int64_t d = 0; d < p->y.ne[0]; ++d) {
        y[d] = scale == 0.0f ? 0.0f : acc[d] * scale;
    }
}

static float * gcudai_attn_part(const struct gcudai_attn * a, int64_t row, int64_t part, char * shared) {
    return (float *) (void *) shared + (row * a->n_parts + part) * (a->dv + 2);
}

static void gcudai_attn_end(const struct gcudai_attn_block * b, char * shared) {
    for (int64_t i = 0; i < b->n; ++i) {
        const int64_t h = gcudai_attn_head(b, i), token = gcudai_attn_token(b, i);
        const float * acc = b->acc + i * b->a.dv;
        if (b->a.n_parts == 1) {
            gcudai_attn_store(b->p, token, h, b->s, acc, b->max[i], b->sum[i]);
            continue;
        }
        float * to = gcudai_attn_part(&b->a, (b->s * b->p->q.ne[1] + token) * b->p->q.ne[2] + h, b->part, shared);
        to[0] = b->max[i];
        to[1] = b->sum[i];
        memcpy(to + 2, acc, (size_t) b->a.dv * sizeof(float));
    }
}

// Joins the parts of one query, in the order of the positions.
static void gcudai_attn_join(const struct gcuda_flash_attn_ext_args * p, const struct gcudai_attn * a, int64_t row, char * shared) {
    float * first = gcudai_attn_part(a, row, 0, shared);
    for (int64_t k = 1; k < a->n_parts; ++k) {
        const float * part = gcudai_attn_part(a, row, k, shared);
        const float max = part[0] > first[0] ? part[0] : first[0];
        const float u = first[0] == max ? 1.0f : expf(first[0] - max), v = part[0] == max ? 1.0f : expf(part[0] - max);
        first[0] = max;
        for (int64_t d = 1; d < a->dv + 2; ++d) {
            first[d] = first[d] * u + part[d] * v;
        }
    }
    const int64_t h = row % p->q.ne[2], token = row / p->q.ne[2] % p->q.ne[1], s = row / p->q.ne[2] / p->q.ne[1];
    gcudai_attn_store(p, token, h, s, first + 2, first[0], first[1]);
}

static void gcudai_flash_attn_ext_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    struct gcudai_attn_block b;
    GCUDAI_ZERO(b);
    b.p = &args->flash_attn_ext;
    b.a = gcudai_attn_plan(b.p);
    b.dot = gcudai_lane_is_avx2() ? gcudai_lane_dot_avx2 : gcudai_lane_dot_any;
    b.add4 = gcudai_lane_is_avx2() ? gcudai_lane_add4_avx2 : gcudai_lane_add4_any;
    for (int64_t item = t->i0; item < t->i1; ++item) {
        if (t->phase == 1) {
            gcudai_attn_join(b.p, &b.a, item, t->shared);
            continue;
        }
        gcudai_attn_begin(&b, item, t->local);
        const int64_t end = GCUDAI_MIN((b.part + 1) * b.a.n_kv_part, b.a.n_kv);
        for (int64_t j = b.part * b.a.n_kv_part; j < end; j += GCUDAI_ATTN_TILE) {
            const int64_t n = GCUDAI_MIN(GCUDAI_ATTN_TILE, end - j);
            gcudai_attn_bias(&b, j, n);
            gcudai_attn_scores(&b, j, n);
            gcudai_attn_weights(&b, n);
            gcudai_attn_values(&b, j, n);
        }
        gcudai_attn_end(&b, t->shared);
    }
}

// ---- convolutions ----

// Extent of a convolution's result along one axis; 0 when the parameters allow none.
static int64_t gcudai_conv_extent(int64_t in, int64_t k, int32_t s, int32_t p, int32_t d) {
    int64_t padded = 0, reach = 0;
    if (s < 1 || d < 1 || p < 0 || k < 1 || !gcudai_add_i64(in, 2 * (int64_t) p, &padded) || !gcudai_mul_i64(k - 1, d, &reach)) {
        return 0;
    }
    return GCUDAI_MAX((padded - reach - 1) / s + 1, 0);
}

static gcuda_status gcudai_want_conv(const struct gcuda_tensor * y, int axis, int64_t in, int64_t k, int32_t s, int32_t p, int32_t d) {
    GCUDAI_WANT(y, s >= 1 && p >= 0 && d >= 1, "axis %d: stride %d, padding %d, dilation %d; want stride and dilation >= 1, padding >= 0",
                axis, (int) s, (int) p, (int) d);
    GCUDAI_WANT(y, gcudai_conv_extent(in, k, s, p, d) >= 1, "axis %d: a kernel of %lld with dilation %d finds no place in %lld with padding %d",
                axis, (long long) k, (int) d, (long long) in, (int) p);
    return GCUDA_STATUS_SUCCESS;
}

static void gcudai_set_params_i32(struct gcuda_tensor * y, const int32_t * values, int n) {
    for (int i = 0; i < n; ++i) {
        gcudai_set_param_i32(y, i, values[i]);
    }
}

// A dimension of extent 1 in front of dimension i: how one-dimensional operations become images of height 1.
static void gcudai_lift(struct gcuda_array * a, int i) {
    for (int k = 3; k > i; --k) {
        a->ne[k] = a->ne[k - 1];
        a->nb[k] = a->nb[k - 1];
    }
    a->ne[i] = 1;
}

static void gcudai_conv_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    struct gcuda_conv_args * p = &args->conv;
    const bool is_back = y->op == GCUDA_OP_IM2COL_BACK;
    p->kernel = gcudai_array(y->src[is_back ? 1 : 0]);
    p->x = gcudai_array(y->src[is_back ? 0 : 1]);
    p->y = gcudai_array(y);
    p->s0 = gcudai_param_i32(y, 0);
    p->s1 = gcudai_param_i32(y, 1);
    p->p0 = gcudai_param_i32(y, 2);
    p->p1 = gcudai_param_i32(y, 3);
    p->d0 = gcudai_param_i32(y, 4);
    p->d1 = gcudai_param_i32(y, 5);
    if ((is_back || y->op == GCUDA_OP_IM2COL) && gcudai_param_i32(y, 6) == 0) {
        gcudai_lift(&p->kernel, 1);
        gcudai_lift(&p->x, is_back ? 2 : 1);
        gcudai_lift(&p->y, is_back ? 1 : 2);
        p->s1 = p->d1 = 1;
        p->p1 = 0;
    }
}

// Elements [0, count) of out are those of a row of n at first, first + step, ...; 0 outside of it.
static void gcudai_window(enum gcuda_type type, const char * row, size_t nb0, int64_t n, int64_t first, int64_t step, int64_t count, float * out) {
    const int64_t lo = first >= 0 ? 0 : GCUDAI_MIN((-first + step - 1) / step, count);
    const int64_t hi = first >= n ? lo : GCUDAI_MAX(GCUDAI_MIN((n - first + step - 1) / step, count), lo);
    for (int64_t i = 0; i < lo; ++i) {
        out[i] = 0.0f;
    }
    if (hi > lo) {
        const char * from = row + (size_t) (first + lo * step) * nb0;
        if (type == GCUDA_TYPE_F32 && nb0 == sizeof(float) && step == 1) {
            memcpy(out + lo, from, (size_t) (hi - lo) * sizeof(float));
        } else {
            for (int64_t i = lo; i < hi; ++i) {
                out[i] = gcudai_float_at(type, from + (size_t) ((i - lo) * step) * nb0);
            }
        }
    }
    for (int64_t i = hi; i < count; ++i) {
        out[i] = 0.0f;
    }
}

// Where the elements of an im2col row come from.
struct gcudai_patch {
    enum gcuda_type type;
    const char * data;         // of channel 0
    size_t nb[3], nb_channel;
    int64_t ne[3], origin[3];  // of the image; where the window begins, maybe outside
    int64_t k[3];              // kernel extents
    int32_t d[3];              // dilations
};

static void gcudai_patch_read(const struct gcudai_patch * p, int64_t i0, int64_t n, float * out) {
    int64_t k0 = i0 % p->k[0], k1 = i0 / p->k[0] % p->k[1], k2 = i0 / p->k[0] / p->k[1] % p->k[2];
    int64_t channel = i0 / p->k[0] / p->k[1] / p->k[2];
    while (n > 0) {
        const int64_t run = GCUDAI_MIN(p->k[0] - k0, n);
        const int64_t y = p->origin[1] + k1 * p->d[1], z = p->origin[2] + k2 * p->d[2];
        const bool is_inside = y >= 0 && y < p->ne[1] && z >= 0 && z < p->ne[2];
        const char * row = is_inside ? p->data + (size_t) channel * p->nb_channel + (size_t) y * p->nb[1] + (size_t) z * p->nb[2] : NULL;
        gcudai_window(p->type, row, p->nb[0], is_inside ? p->ne[0] : 0, p->origin[0] + k0 * p->d[0], p->d[0], run, out);
        out += run;
        n -= run;
        k0 = 0;
        if (++k1 == p->k[1]) {
            k1 = 0;
            if (++k2 == p->k[2]) {
                k2 = 0;
                ++channel;
            }
        }
    }
}

// >>op:im2col -----------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_im2col(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int s0, int s1, int p0, int p1, int d0, int d1, bool is_2D, enum gcuda_type dst_type) {
    struct gcuda_tensor * src[] = { a, b };
    if (!gcudai_op_begin(ctx, GCUDA_OP_IM2COL, src, 2)) {
        return NULL;
    }
    const int32_t params[] = { s0, s1, p0, p1, d0, d1, is_2D ? 1 : 0 };
    const int64_t ow = gcudai_conv_extent(b->ne[0], a->ne[0], s0, p0, d0);
    const int64_t oh = is_2D ? gcudai_conv_extent(b->ne[1], a->ne[1], s1, p1, d1) : b->ne[2];
    const int64_t ne[4] = { gcudai_product(a->ne[0], a->ne[1], is_2D ? a->ne[2] : 1, 1), ow, oh, is_2D ? b->ne[3] : 1 };
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_IM2COL, dst_type, ne, src, 2);
    gcudai_set_params_i32(y, params, 7);
    return gcudai_op_finish(ctx, y);
}

static gcuda_status gcudai_im2col_check(const struct gcuda_tensor * y) {
    union gcudai_args args;
    gcudai_conv_args(y, &args);
    const struct gcuda_conv_args * p = &args.conv;
    const bool is_2d = gcudai_param_i32(y, 6) != 0;
    GCUDAI_TRY(gcudai_want_float(y, y->src[1]));
    GCUDAI_TRY(gcudai_want_float(y, y));
    GCUDAI_TRY(gcudai_want_contiguous(y, y));
    GCUDAI_WANT(y, is_2d || (y->src[0]->ne[3] == 1 && y->src[1]->ne[3] == 1), "one-dimensional, and a source has four dimensions");
    GCUDAI_WANT(y, p->kernel.ne[2] == p->x.ne[2], "kernel has %lld channels, image %lld", (long long) p->kernel.ne[2], (long long) p->x.ne[2]);
    GCUDAI_TRY(gcudai_want_conv(y, 0, p->x.ne[0], p->kernel.ne[0], p->s0, p->p0, p->d0));
    GCUDAI_TRY(gcudai_want_conv(y, 1, p->x.ne[1], p->kernel.ne[1], p->s1, p->p1, p->d1));
    const int64_t n = gcudai_product(p->kernel.ne[0], p->kernel.ne[1], p->kernel.ne[2], 1);
    const int64_t ow = gcudai_conv_extent(p->x.ne[0], p->kernel.ne[0], p->s0, p->p0, p->d0);
    const int64_t oh = gcudai_conv_extent(p->x.ne[1], p->kernel.ne[1], p->s1, p->p1, p->d1);
    return is_2d ? gcudai_want_shape(y, n, ow, oh, p->x.ne[3]) : gcudai_want_shape(y, n, ow, p->x.ne[3], 1);
}

#define GCUDAI_IM2COL_COST 4.0

static void gcudai_im2col_work(const struct gcuda_tensor * y, struct gcudai_work * w) { gcudai_stretch_split(y->ne, GCUDAI_IM2COL_COST, w, 0); }

static void gcudai_im2col_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_conv_args * p = &args->conv;
    struct gcudai_patch patch = { p->x.type, NULL, { p->x.nb[0], p->x.nb[1], 0 }, p->x.nb[2], { p->x.ne[0], p->x.ne[1], 1 }, { 0, 0, 0 },
                                  { p->kernel.ne[0], p->kernel.ne[1], 1 }, { p->d0, p->d1, 1 } };
    float buf[GCUDAI_PIECE];
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_stretch c = gcudai_stretch_of(p->y.ne, GCUDAI_IM2COL_COST, item);
        patch.data = gcudai_at(&p->x, 0, 0, c.i3);
        patch.origin[0] = c.i1 * p->s0 - p->p0;
        patch.origin[1] = c.i2 * p->s1 - p->p1;
        gcudai_patch_read(&patch, c.i0, c.n, buf);
        gcudai_stretch_store(&p->y, &c, buf);
    }
}

// >>op:im2col_back ------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_im2col_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, const int64_t * ne, int s0, int s1, int p0, int p1, int d0, int d1, bool is_2D) {
    struct gcuda_tensor * src[] = { a, b };
    if (!gcudai_op_begin(ctx, GCUDA_OP_IM2COL_BACK, src, 2)) {
        return NULL;
    }
    if (ne == NULL) {
        return gcudai_op_error(ctx, GCUDA_OP_IM2COL_BACK, "the shape is NULL");
    }
    const int32_t params[] = { s0, s1, p0, p1, d0, d1, is_2D ? 1 : 0 };
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_IM2COL_BACK, GCUDA_TYPE_F32, ne, src, 2);
    gcudai_set_params_i32(y, params, 7);
    return gcudai_op_finish(ctx, y);
}

static gcuda_status gcudai_im2col_back_check(const struct gcuda_tensor * y) {
    union gcudai_args args;
    gcudai_conv_args(y, &args);
    const struct gcuda_conv_args * p = &args.conv;
    const bool is_2d = gcudai_param_i32(y, 6) != 0;
    GCUDAI_TRY(gcudai_want_float(y, y->src[0]));
    GCUDAI_TRY(gcudai_want_type(y, y, GCUDA_TYPE_F32));
    GCUDAI_TRY(gcudai_want_contiguous(y, y));
    GCUDAI_WANT(y, is_2d || (y->src[0]->ne[3] == 1 && y->src[1]->ne[3] == 1 && y->ne[3] == 1), "one-dimensional, and there are four dimensions");
    GCUDAI_WANT(y, p->kernel.ne[2] == p->y.ne[2], "kernel has %lld channels, image %lld", (long long) p->kernel.ne[2], (long long) p->y.ne[2]);
    GCUDAI_TRY(gcudai_want_conv(y, 0, p->y.ne[0], p->kernel.ne[0], p->s0, p->p0, p->d0));
    GCUDAI_TRY(gcudai_want_conv(y, 1, p->y.ne[1], p->kernel.ne[1], p->s1, p->p1, p->d1));
    const int64_t n = gcudai_product(p->kernel.ne[0], p->kernel.ne[1], p->kernel.ne[2], 1);
    const int64_t ow = gcudai_conv_extent(p->y.ne[0], p->kernel.ne[0], p->s0, p->p0, p->d0);
    const int64_t oh = gcudai_conv_extent(p->y.ne[1], p->kernel.ne[1], p->s1, p->p1, p->d1);
    GCUDAI_WANT(y, p->x.ne[0] == n && p->x.ne[1] == ow && p->x.ne[2] == oh && p->x.ne[3] == p->y.ne[3],
                "the gradient of this image would be %lld columns of %lld x %lld places, %lld times", (long long) n, (long long) ow,
                (long long) oh, (long long) p->y.ne[3]);
    return GCUDA_STATUS_SUCCESS;
}

static double gcudai_im2col_back_cost(const struct gcuda_conv_args * p) { return 2.0 + 3.0 * (double) p->kernel.ne[0] * (double) p->kernel.ne[1]; }

static void gcudai_im2col_back_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    union gcudai_args args;
    gcudai_conv_args(y, &args);
    gcudai_stretch_split(args.conv.y.ne, gcudai_im2col_back_cost(&args.conv), w, 0);
}

// One kernel element's share: image element x was copied by output place (x + p - k * d) / s, if that is one.
static void gcudai_im2col_back_tap(const struct gcuda_conv_args * p, const struct gcudai_stretch * c, int64_t kw, int64_t kh, float * sum) {
    const int64_t y = c->i1 + p->p1 - kh * p->d1;
    if (y < 0 || y % p->s1 != 0 || y / p->s1 >= p->x.ne[2]) {
        return;
    }
    const int64_t column = (c->i2 * p->kernel.ne[1] + kh) * p->kernel.ne[0] + kw;
    const char * from = gcudai_at(&p->x, 0, y / p->s1, c->i3) + (size_t) column * p->x.nb[0];
    for (int64_t i = 0; i < c->n; ++i) {
        const int64_t x = c->i0 + i + p->p0 - kw * p->d0;
        if (x >= 0 && x % p->s0 == 0 && x / p->s0 < p->x.ne[1]) {
            sum[i] += gcudai_float_at(p->x.type, from + (size_t) (x / p->s0) * p->x.nb[1]);
        }
    }
}

static void gcudai_im2col_back_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_conv_args * p = &args->conv;
    float sum[GCUDAI_PIECE];
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_stretch c = gcudai_stretch_of(p->y.ne, gcudai_im2col_back_cost(p), item);
        memset(sum, 0, sizeof(sum));
        for (int64_t kh = 0; kh < p->kernel.ne[1]; ++kh) {
            for (int64_t kw = 0; kw < p->kernel.ne[0]; ++kw) {
                gcudai_im2col_back_tap(p, &c, kw, kh, sum);
            }
        }
        gcudai_stretch_store(&p->y, &c, sum);
    }
}

// >>op:im2col_3d --------------------------------------------------------------------------------------
static bool gcudai_is_channels(int64_t channels, const struct gcuda_tensor * a, const struct gcuda_tensor * b) {
    return channels >= 1 && channels <= INT32_MAX && a->ne[3] % channels == 0 && b->ne[3] % channels == 0;
}

struct gcuda_tensor * gcuda_im2col_3d(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int64_t IC, int s0, int s1, int s2, int p0, int p1, int p2, int d0, int d1, int d2, enum gcuda_type dst_type) {
    struct gcuda_tensor * src[] = { a, b };
    if (!gcudai_op_begin(ctx, GCUDA_OP_IM2COL_3D, src, 2)) {
        return NULL;
    }
    if (IC > INT32_MAX) {
        return gcudai_op_error(ctx, GCUDA_OP_IM2COL_3D, "%lld channels, want at most %d", (long long) IC, INT32_MAX);
    }
    const int32_t n_channels = IC < 0 ? -1 : (int32_t) IC; // one that does not fit: the check will say so
    const int64_t n_images = b->ne[3] / GCUDAI_MAX(n_channels, 1);
    const int32_t params[] = { s0, s1, s2, p0, p1, p2, d0, d1, d2, n_channels };
    const int64_t od = gcudai_conv_extent(b->ne[2], a->ne[2], s2, p2, d2);
    const int64_t ne[4] = { gcudai_product(a->ne[0], a->ne[1], a->ne[2], GCUDAI_MAX(n_channels, 0)), gcudai_conv_extent(b->ne[0], a->ne[0], s0, p0, d0),
                            gcudai_conv_extent(b->ne[1], a->ne[1], s1, p1, d1), gcudai_product(od, n_images, 1, 1) };
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_IM2COL_3D, dst_type, ne, src, 2);
    gcudai_set_params_i32(y, params, 10);
    return gcudai_op_finish(ctx, y);
}

static void gcudai_im2col_3d_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    struct gcuda_im2col_3d_args * p = &args->im2col_3d;
    p->kernel = gcudai_array(y->src[0]);
    p->x = gcudai_array(y->src[1]);
    p->y = gcudai_array(y);
    p->channels = gcudai_param_i32(y, 9);
    for (int i = 0; i < 3; ++i) {
        p->s[i] = gcudai_param_i32(y, i);
        p->p[i] = gcudai_param_i32(y, 3 + i);
        p->d[i] = gcudai_param_i32(y, 6 + i);
    }
}

static gcuda_status gcudai_im2col_3d_check(const struct gcuda_tensor * y) {
    union gcudai_args args;
    gcudai_im2col_3d_args(y, &args);
    const struct gcuda_im2col_3d_args * p = &args.im2col_3d;
    int64_t o[3];
    GCUDAI_TRY(gcudai_want_float(y, y->src[1]));
    GCUDAI_TRY(gcudai_want_float(y, y));
    GCUDAI_TRY(gcudai_want_contiguous(y, y));
    GCUDAI_WANT(y, gcudai_is_channels(p->channels, y->src[0], y->src[1]), "%lld channels do not divide the last extents", (long long) p->channels);
    for (int i = 0; i < 3; ++i) {
        GCUDAI_TRY(gcudai_want_conv(y, i, p->x.ne[i], p->kernel.ne[i], p->s[i], p->p[i], p->d[i]));
        o[i] = gcudai_conv_extent(p->x.ne[i], p->kernel.ne[i], p->s[i], p->p[i], p->d[i]);
    }
    return gcudai_want_shape(y, gcudai_product(p->kernel.ne[0], p->kernel.ne[1], p->kernel.ne[2], p->channels), o[0], o[1],
                             gcudai_product(o[2], p->x.ne[3] / p->channels, 1, 1));
}

static void gcudai_im2col_3d_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_im2col_3d_args * p = &args->im2col_3d;
    const int64_t n_images = p->x.ne[3] / p->channels, od = p->y.ne[3] / n_images;
    struct gcudai_patch patch = { p->x.type, NULL, { p->x.nb[0], p->x.nb[1], p->x.nb[2] }, p->x.nb[3], { p->x.ne[0], p->x.ne[1], p->x.ne[2] },
                                  { 0, 0, 0 }, { p->kernel.ne[0], p->kernel.ne[1], p->kernel.ne[2] }, { p->d[0], p->d[1], p->d[2] } };
    float buf[GCUDAI_PIECE];
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_stretch c = gcudai_stretch_of(p->y.ne, GCUDAI_IM2COL_COST, item);
        patch.data = gcudai_at(&p->x, 0, 0, c.i3 / od * p->channels);
        patch.origin[0] = c.i1 * p->s[0] - p->p[0];
        patch.origin[1] = c.i2 * p->s[1] - p->p[1];
        patch.origin[2] = c.i3 % od * p->s[2] - p->p[2];
        gcudai_patch_read(&patch, c.i0, c.n, buf);
        gcudai_stretch_store(&p->y, &c, buf);
    }
}

// >>op:conv_2d ----------------------------------------------------------------------------------------
static struct gcuda_tensor * gcudai_conv_2d(struct gcuda_context * ctx, enum gcuda_op op, struct gcuda_tensor * a, struct gcuda_tensor * b, const int32_t * params) {
    struct gcuda_tensor * src[] = { a, b };
    if (!gcudai_op_begin(ctx, op, src, 2)) {
        return NULL;
    }
    const int64_t ne[4] = { gcudai_conv_extent(b->ne[0], a->ne[0], params[0], params[2], params[4]),
                            gcudai_conv_extent(b->ne[1], a->ne[1], params[1], params[3], params[5]), a->ne[3], b->ne[3] };
    const enum gcuda_type type = gcudai_is_float(b->type) ? b->type : GCUDA_TYPE_F32; // a wrong type: the check will say so
    struct gcuda_tensor * y = gcudai_op_new(ctx, op, type, ne, src, 2);
    gcudai_set_params_i32(y, params, 6);
    return y;
}

struct gcuda_tensor * gcuda_conv_2d_direct(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int s0, int s1, int p0, int p1, int d0, int d1) {
    const int32_t params[] = { s0, s1, p0, p1, d0, d1 };
    return gcudai_op_finish(ctx, gcudai_conv_2d(ctx, GCUDA_OP_CONV_2D, a, b, params));
}

// What conv_2d and conv_2d_dw have in common.
static gcuda_status gcudai_conv_2d_check_axes(const struct gcuda_tensor * y) {
    union gcudai_args args;
    gcudai_conv_args(y, &args);
    const struct gcuda_conv_args * p = &args.conv;
    GCUDAI_TRY(gcudai_want_float(y, y->src[0]));
    GCUDAI_TRY(gcudai_want_float(y, y->src[1]));
    GCUDAI_TRY(gcudai_want_type(y, y, y->src[1]->type));
    GCUDAI_TRY(gcudai_want_conv(y, 0, p->x.ne[0], p->kernel.ne[0], p->s0, p->p0, p->d0));
    GCUDAI_TRY(gcudai_want_conv(y, 1, p->x.ne[1], p->kernel.ne[1], p->s1, p->p1, p->d1));
    return gcudai_want_shape(y, gcudai_conv_extent(p->x.ne[0], p->kernel.ne[0], p->s0, p->p0, p->d0),
                             gcudai_conv_extent(p->x.ne[1], p->kernel.ne[1], p->s1, p->p1, p->d1), p->kernel.ne[3], p->x.ne[3]);
}

static gcuda_status gcudai_conv_2d_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * a = y->src[0];
    const struct gcuda_tensor * b = y->src[1];
    GCUDAI_WANT(y, a->ne[2] == b->ne[2], "kernel has %lld channels, image %lld", (long long) a->ne[2], (long long) b->ne[2]);
    GCUDAI_TRY(gcudai_conv_2d_check_axes(y));
    GCUDAI_TRY(gcudai_want_contiguous(y, a));
    return gcudai_want_contiguous(y, y);
}

// An item is a block of output pixels of one image for a block of output channels. The patches of the pixels are laid
// out with the pixels adjacent, GCUDAI_CONV_TAPS kernel elements at a time.
#define GCUDAI_CONV_TAPS 64

struct gcudai_conv_plan {
    int64_t n_taps, n_pixels, n_blocks; // kernel elements of an output channel; output pixels of an image
    int64_t oc_block, n_oc_blocks;
};

static struct gcudai_conv_plan gcudai_conv_plan_of(const struct gcuda_conv_args * p) {
    struct gcudai_conv_plan c;
    c.n_taps = p->kernel.ne[0] * p->kernel.ne[1] * p->kernel.ne[2];
    c.n_pixels = p->y.ne[0] * p->y.ne[1];
    c.n_blocks = (c.n_pixels + GCUDAI_CONV_PIXELS - 1) / GCUDAI_CONV_PIXELS;
    c.oc_block = GCUDAI_MIN(GCUDAI_MAX(98304 / GCUDAI_MAX(c.n_taps, 1), 1), 64); // 64 * 98304 products are about 1 ms
    c.n_oc_blocks = (p->y.ne[2] + c.oc_block - 1) / c.oc_block;
    return c;
}

static void gcudai_conv_2d_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    union gcudai_args args;
    gcudai_conv_args(y, &args);
    const struct gcudai_conv_plan c = gcudai_conv_plan_of(&args.conv);
    w->n_items[0] = y->ne[3] * c.n_blocks * c.n_oc_blocks;
    w->item_cost[0] = 500.0 + GCUDAI_CONV_PIXELS * (double) c.n_taps * ((double) GCUDAI_MIN(c.oc_block, y->ne[2]) * 0.4 + 3.0);
    w->local_bytes = sizeof(float) * GCUDAI_CONV_PIXELS * (size_t) (GCUDAI_CONV_TAPS + c.oc_block);
}

// Row i of out: what kernel element tap + i meets at pixels [q0, q0 + n) of image b.
static void gcudai_conv_pack(const struct gcuda_conv_args * p, int64_t image, int64_t tap, int64_t n_taps, int64_t q0, int64_t n, float * out) {
    const int64_t kw_n = p->kernel.ne[0], kh_n = p->kernel.ne[1], ow_n = p->y.ne[0];
    for (int64_t i = 0; i < n_taps; ++i, out += GCUDAI_CONV_PIXELS) {
        const int64_t kw = (tap + i) % kw_n, kh = (tap + i) / kw_n % kh_n, ic = (tap + i) / kw_n / kh_n;
        int64_t ow = q0 % ow_n, oh = q0 / ow_n;
        for (int64_t j = 0; j < n; ++oh) {
            const int64_t run = GCUDAI_MIN(ow_n - ow, n - j), y = oh * p->s1 + kh * p->d1 - p->p1;
            const bool is_inside = y >= 0 && y < p->x.ne[1];
            gcudai_window(p->x.type, is_inside ? gcudai_at(&p->x, y, ic, image) : NULL, p->x.nb[0], is_inside ? p->x.ne[0] : 0,
                          ow * p->s0 + kw * p->d0 - p->p0, p->s0, run, out + j);
            j += run;
            ow = 0;
        }
        for (int64_t j = n; j < GCUDAI_CONV_PIXELS; ++j) {
            out[j] = 0.0f;
        }
    }
}

static void gcudai_conv_2d_item(const struct gcuda_conv_args * p, const struct gcudai_conv_plan * c, int64_t item, char * local) {
    const gcudai_lane_taps_fn add_taps = gcudai_lane_is_avx2() ? gcudai_lane_taps_avx2 : gcudai_lane_taps_any;
    const int64_t oc0 = item % c->n_oc_blocks * c->oc_block, n_oc = GCUDAI_MIN(c->oc_block, p->y.ne[2] - oc0);
    const int64_t q0 = item / c->n_oc_blocks % c->n_blocks * GCUDAI_CONV_PIXELS, n = GCUDAI_MIN(GCUDAI_CONV_PIXELS, c->n_pixels - q0);
    const int64_t image = item / c->n_oc_blocks / c->n_blocks;
    float * patches = (float *) (void *) local;
    float * sums = patches + GCUDAI_CONV_TAPS * GCUDAI_CONV_PIXELS;
    float weights[GCUDAI_CONV_TAPS];
    memset(sums, 0, sizeof(float) * GCUDAI_CONV_PIXELS * (size_t) n_oc);
    for (int64_t tap = 0; tap < c->n_taps; tap += GCUDAI_CONV_TAPS) {
        const int64_t n_taps = GCUDAI_MIN(GCUDAI_CONV_TAPS, c->n_taps - tap);
        gcudai_conv_pack(p, image, tap, n_taps, q0, n, patches);
        for (int64_t oc = 0; oc < n_oc; ++oc) {
            const char * from = gcudai_at(&p->kernel, 0, 0, oc0 + oc) + (size_t) tap * p->kernel.nb[0];
            add_taps(sums + oc * GCUDAI_CONV_PIXELS, gcudai_floats(p->kernel.type, from, n_taps, weights), patches, n_taps);
        }
    }
    for (int64_t oc = 0; oc < n_oc; ++oc) {
        char * to = gcudai_at(&p->y, 0, oc0 + oc, image) + (size_t) q0 * p->y.nb[0];
        gcudai_store(p->y.type, to, p->y.nb[0], n, sums + oc * GCUDAI_CONV_PIXELS);
    }
}

static void gcudai_conv_2d_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcudai_conv_plan c = gcudai_conv_plan_of(&args->conv);
    for (int64_t item = t->i0; item < t->i1; ++item) {
        gcudai_conv_2d_item(&args->conv, &c, item, t->local);
    }
}

// ---- convolutions through im2col ----

// A size of a kernel as a parameter; what does not fit is refused by im2col.
static int gcudai_size_param(const struct gcuda_tensor * a, int axis) { return a == NULL ? 1 : (int) GCUDAI_MIN(a->ne[axis], INT32_MAX); }

// [X, n1, n2, n3] times the kernel, whose output channels are its last dimension n_oc: [n1 * n2 * n3, n_oc].
static struct gcuda_tensor * gcudai_conv_product(struct gcuda_context * ctx, struct gcuda_tensor * patches, struct gcuda_tensor * kernel, int64_t n_oc) {
    if (patches == NULL) {
        return NULL;
    }
    const int64_t n_places = gcudai_product(patches->ne[1], patches->ne[2], patches->ne[3], 1);
    struct gcuda_tensor * rows = gcuda_reshape_2d(ctx, patches, patches->ne[0], n_places);
    return gcuda_mul_mat(ctx, rows, gcuda_reshape_2d(ctx, kernel, patches->ne[0], n_oc));
}

struct gcuda_tensor * gcuda_conv_1d(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int s0, int p0, int d0) {
    struct gcuda_tensor * patches = gcuda_im2col(ctx, a, b, s0, 0, p0, 0, d0, 0, false, GCUDA_TYPE_F16);
    struct gcuda_tensor * y = gcudai_conv_product(ctx, patches, a, a ? a->ne[2] : 0);
    if (y == NULL) {
        return NULL;
    }
    if (patches->ne[2] == 1) {
        return gcuda_reshape_3d(ctx, y, patches->ne[1], a->ne[2], 1);
    }
    y = gcuda_reshape_3d(ctx, y, patches->ne[1], patches->ne[2], a->ne[2]);
    return gcuda_cont(ctx, gcuda_permute(ctx, y, 0, 2, 1, 3));
}

struct gcuda_tensor * gcuda_conv_1d_ph(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int s, int d) {
    return gcuda_conv_1d(ctx, a, b, s, gcudai_size_param(a, 0) / 2, d);
}

struct gcuda_tensor * gcuda_conv_1d_dw(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int s0, int p0, int d0) {
    struct gcuda_tensor * x = b ? gcuda_reshape_4d(ctx, b, b->ne[0], 1, b->ne[1], b->ne[2]) : NULL;
    struct gcuda_tensor * y = gcuda_mul_mat(ctx, gcuda_im2col(ctx, a, x, s0, 0, p0, 0, d0, 0, false, GCUDA_TYPE_F16), a);
    return y ? gcuda_reshape_3d(ctx, y, y->ne[0], y->ne[2], 1) : NULL;
}

struct gcuda_tensor * gcuda_conv_1d_dw_ph(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int s0, int d0) {
    return gcuda_conv_1d_dw(ctx, a, b, s0, gcudai_size_param(a, 0) / 2, d0);
}

struct gcuda_tensor * gcuda_conv_2d(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int s0, int s1, int p0, int p1, int d0, int d1) {
    struct gcuda_tensor * patches = gcuda_im2col(ctx, a, b, s0, s1, p0, p1, d0, d1, true, a ? a->type : GCUDA_TYPE_F16);
    struct gcuda_tensor * y = gcudai_conv_product(ctx, patches, a, a ? a->ne[3] : 0);
    if (y == NULL) {
        return NULL;
    }
    y = gcuda_reshape_4d(ctx, y, patches->ne[1], patches->ne[2], patches->ne[3], a->ne[3]);
    return gcuda_cont(ctx, gcuda_permute(ctx, y, 0, 1, 3, 2));
}

struct gcuda_tensor * gcuda_conv_2d_sk_p0(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    return gcuda_conv_2d(ctx, a, b, gcudai_size_param(a, 0), gcudai_size_param(a, 1), 0, 0, 1, 1);
}

struct gcuda_tensor * gcuda_conv_2d_s1_ph(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    return gcuda_conv_2d(ctx, a, b, 1, 1, gcudai_size_param(a, 0) / 2, gcudai_size_param(a, 1) / 2, 1, 1);
}

// Channels and images together are the images; the kernel is the first factor, one for each channel.
struct gcuda_tensor * gcuda_conv_2d_dw(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int s0, int s1, int p0, int p1, int d0, int d1) {
    struct gcuda_tensor * k = a ? gcuda_reshape_4d(ctx, a, a->ne[0], a->ne[1], 1, gcudai_product(a->ne[2], a->ne[3], 1, 1)) : NULL;
    struct gcuda_tensor * x = b ? gcuda_reshape_4d(ctx, b, b->ne[0], b->ne[1], 1, gcudai_product(b->ne[2], b->ne[3], 1, 1)) : NULL;
    const enum gcuda_type type = a && a->type == GCUDA_TYPE_F16 ? GCUDA_TYPE_F16 : GCUDA_TYPE_F32;
    struct gcuda_tensor * patches = gcuda_im2col(ctx, k, x, s0, s1, p0, p1, d0, d1, true, type);
    if (patches == NULL) {
        return NULL;
    }
    const int64_t ow = patches->ne[1], oh = patches->ne[2];
    patches = gcuda_reshape_4d(ctx, patches, patches->ne[0], gcudai_product(ow, oh, 1, 1), b->ne[2], b->ne[3]);
    k = gcuda_reshape_4d(ctx, k, gcudai_product(a->ne[0], a->ne[1], 1, 1), 1, k->ne[3], 1);
    return gcuda_reshape_4d(ctx, gcuda_mul_mat(ctx, k, patches), ow, oh, b->ne[2], b->ne[3]);
}

struct gcuda_tensor * gcuda_conv_3d(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int64_t IC, int s0, int s1, int s2, int p0, int p1, int p2, int d0, int d1, int d2) {
    struct gcuda_tensor * patches = gcuda_im2col_3d(ctx, a, b, IC, s0, s1, s2, p0, p1, p2, d0, d1, d2, a ? a->type : GCUDA_TYPE_F16);
    struct gcuda_tensor * y = gcudai_conv_product(ctx, patches, a, patches ? a->ne[3] / IC : 0);
    if (y == NULL) {
        return NULL;
    }
    const int64_t n_oc = a->ne[3] / IC, n_images = b->ne[3] / IC, ow = patches->ne[1], oh = patches->ne[2];
    const int64_t od = gcudai_conv_extent(b->ne[2], a->ne[2], s2, p2, d2);
    y = gcuda_reshape_4d(ctx, y, gcudai_product(ow, oh, 1, 1), od, n_images, n_oc);
    y = gcuda_cont(ctx, gcuda_permute(ctx, y, 0, 1, 3, 2));
    return gcuda_reshape_4d(ctx, y, ow, oh, od, gcudai_product(n_oc, n_images, 1, 1));
}

// >>op:conv_2d_dw -------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_conv_2d_dw_direct(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int stride0, int stride1, int pad0, int pad1, int dilation0, int dilation1) {
    const int32_t params[] = { stride0, stride1, pad0, pad1, dilation0, dilation1 };
    struct gcuda_tensor * y = gcudai_conv_2d(ctx, GCUDA_OP_CONV_2D_DW, a, b, params);
    if (y != NULL && !gcuda_is_contiguous(b)) { // channels innermost: the same bytes in another order
        y->nb[2] = gcuda_type_size(y->type);
        y->nb[0] = y->nb[2] * (size_t) y->ne[2];
        y->nb[1] = y->nb[0] * (size_t) y->ne[0];
    }
    return gcudai_op_finish(ctx, y);
}

static bool gcudai_is_dense_channels(const struct gcuda_tensor * t) {
    const size_t ts = gcuda_type_size(t->type);
    return t->nb[2] == ts && t->nb[0] == ts * (size_t) t->ne[2] && t->nb[1] == t->nb[0] * (size_t) t->ne[0] && t->nb[3] == t->nb[1] * (size_t) t->ne[1];
}

static gcuda_status gcudai_conv_2d_dw_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * a = y->src[0];
    const struct gcuda_tensor * b = y->src[1];
    GCUDAI_WANT(y, a->ne[2] == 1 && a->ne[3] == b->ne[2], "kernel must be [KW, KH, 1, %lld]", (long long) b->ne[2]);
    GCUDAI_TRY(gcudai_conv_2d_check_axes(y));
    GCUDAI_WANT(y, gcuda_is_contiguous(b) || gcuda_is_contiguous_channels(b), "image must be contiguous, or have its channels innermost");
    GCUDAI_WANT(y, gcuda_is_contiguous(b) ? gcuda_is_contiguous(y) : gcudai_is_dense_channels(y), "result must have the memory order of the image");
    return GCUDA_STATUS_SUCCESS;
}

static double gcudai_conv_2d_dw_cost(const struct gcuda_conv_args * p) { return 2.0 + 2.0 * (double) p->kernel.ne[0] * (double) p->kernel.ne[1]; }

// Rows along the innermost dimension in memory: [OW, OH, C, N], or [C, OW, OH, N].
static bool gcudai_conv_2d_dw_order(const struct gcuda_conv_args * p, struct gcuda_array * y) {
    static const int order[4] = { 2, 0, 1, 3 };
    const bool is_channels = p->y.nb[2] < p->y.nb[0];
    *y = p->y;
    for (int i = 0; i < 4 && is_channels; ++i) {
        y->ne[i] = p->y.ne[order[i]];
        y->nb[i] = p->y.nb[order[i]];
    }
    return is_channels;
}

static void gcudai_conv_2d_dw_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    union gcudai_args args;
    struct gcuda_array rows;
    gcudai_conv_args(y, &args);
    (void) gcudai_conv_2d_dw_order(&args.conv, &rows);
    gcudai_stretch_split(rows.ne, gcudai_conv_2d_dw_cost(&args.conv), w, 0);
}

// Adds kernel element (kw, kh) times image to a piece of a row of pixels.
static void gcudai_conv_2d_dw_pixels(const struct gcuda_conv_args * p, const struct gcudai_stretch * c, int64_t kw, int64_t kh, float * sum) {
    const int64_t y = c->i1 * p->s1 + kh * p->d1 - p->p1;
    float x[GCUDAI_PIECE];
    if (y < 0 || y >= p->x.ne[1]) {
        return;
    }
    const float w = gcudai_float_at(p->kernel.type, gcudai_at(&p->kernel, kh, 0, c->i2) + (size_t) kw * p->kernel.nb[0]);
    gcudai_window(p->x.type, gcudai_at(&p->x, y, c->i2, c->i3), p->x.nb[0], p->x.ne[0], c->i0 * p->s0 + kw * p->d0 - p->p0, p->s0, c->n, x);
    for (int64_t i = 0; i < c->n; ++i) {
        sum[i] += w * x[i];
    }
}

// The same for a piece of the channels of one pixel.
static void gcudai_conv_2d_dw_channels(const struct gcuda_conv_args * p, const struct gcudai_stretch * c, int64_t kw, int64_t kh, float * sum) {
    const int64_t x = c->i1 * p->s0 + kw * p->d0 - p->p0, y = c->i2 * p->s1 + kh * p->d1 - p->p1;
    float v[GCUDAI_PIECE], w[GCUDAI_PIECE];
    if (x < 0 || x >= p->x.ne[0] || y < 0 || y >= p->x.ne[1]) {
        return;
    }
    gcudai_load(p->x.type, gcudai_at(&p->x, y, c->i0, c->i3) + (size_t) x * p->x.nb[0], p->x.nb[2], c->n, v);
    gcudai_load(p->kernel.type, gcudai_at(&p->kernel, kh, 0, c->i0) + (size_t) kw * p->kernel.nb[0], p->kernel.nb[3], c->n, w);
    for (int64_t i = 0; i < c->n; ++i) {
        sum[i] += w[i] * v[i];
    }
}

static void gcudai_conv_2d_dw_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_conv_args * p = &args->conv;
    struct gcuda_array y;
    const bool is_channels = gcudai_conv_2d_dw_order(p, &y);
    float sum[GCUDAI_PIECE];
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_stretch c = gcudai_stretch_of(y.ne, gcudai_conv_2d_dw_cost(p), item);
        memset(sum, 0, sizeof(sum));
        for (int64_t kh = 0; kh < p->kernel.ne[1]; ++kh) {
            for (int64_t kw = 0; kw < p->kernel.ne[0]; ++kw) {
                if (is_channels) {
                    gcudai_conv_2d_dw_channels(p, &c, kw, kh, sum);
                } else {
                    gcudai_conv_2d_dw_pixels(p, &c, kw, kh, sum);
                }
            }
        }
        gcudai_stretch_store(&y, &c, sum);
    }
}

// >>op:conv_transpose_1d ------------------------------------------------------------------------------
static int64_t gcudai_conv_transpose_extent(int64_t in, int64_t k, int32_t s) {
    int64_t n = 0;
    return in >= 1 && k >= 1 && s >= 1 && gcudai_mul_i64(in - 1, s, &n) && gcudai_add_i64(n, k, &n) ? n : 0;
}

struct gcuda_tensor * gcuda_conv_transpose_1d(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int s0, int p0, int d0) {
    struct gcuda_tensor * src[] = { a, b };
    if (!gcudai_op_begin(ctx, GCUDA_OP_CONV_TRANSPOSE_1D, src, 2)) {
        return NULL;
    }
    const int32_t params[] = { s0, p0, d0 };
    const int64_t ne[4] = { gcudai_conv_transpose_extent(b->ne[0], a->ne[0], s0), a->ne[1], 1, 1 };
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_CONV_TRANSPOSE_1D, GCUDA_TYPE_F32, ne, src, 2);
    gcudai_set_params_i32(y, params, 3);
    return gcudai_op_finish(ctx, y);
}

static void gcudai_conv_transpose_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    struct gcuda_conv_transpose_args * p = &args->conv_transpose;
    p->kernel = gcudai_array(y->src[0]);
    p->x = gcudai_array(y->src[1]);
    p->y = gcudai_array(y);
    p->stride = gcudai_param_i32(y, 0);
    if (y->op == GCUDA_OP_CONV_TRANSPOSE_1D) {
        gcudai_lift(&p->kernel, 1);
        gcudai_lift(&p->x, 1);
        gcudai_lift(&p->y, 1);
    }
}

static gcuda_status gcudai_conv_transpose_2d_check(const struct gcuda_tensor * y) {
    union gcudai_args args;
    gcudai_conv_transpose_args(y, &args);
    const struct gcuda_conv_transpose_args * p = &args.conv_transpose;
    GCUDAI_TRY(gcudai_want_float(y, y->src[0]));
    GCUDAI_TRY(gcudai_want_float(y, y->src[1]));
    GCUDAI_TRY(gcudai_want_contiguous(y, y->src[0]));
    GCUDAI_TRY(gcudai_want_contiguous(y, y->src[1]));
    GCUDAI_TRY(gcudai_want_type(y, y, GCUDA_TYPE_F32));
    GCUDAI_TRY(gcudai_want_contiguous(y, y));
    GCUDAI_WANT(y, p->kernel.ne[3] == p->x.ne[2], "kernel has %lld input channels, data %lld", (long long) p->kernel.ne[3], (long long) p->x.ne[2]);
    GCUDAI_WANT(y, p->stride >= 1, "stride is %d, want >= 1", (int) p->stride);
    for (int i = 0; i < 2; ++i) {
        const int64_t n = gcudai_conv_transpose_extent(p->x.ne[i], p->kernel.ne[i], p->stride);
        GCUDAI_WANT(y, n >= 1 && n == p->y.ne[i], "axis %d: %lld of the data, %lld of the kernel, stride %d give no result, or not this one",
                    i, (long long) p->x.ne[i], (long long) p->kernel.ne[i], (int) p->stride);
    }
    GCUDAI_WANT(y, p->y.ne[2] == p->kernel.ne[2] && p->y.ne[3] == p->x.ne[3], "result must have %lld channels and %lld images",
                (long long) p->kernel.ne[2], (long long) p->x.ne[3]);
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_conv_transpose_1d_check(const struct gcuda_tensor * y) {
    GCUDAI_WANT(y, y->src[0]->ne[3] == 1 && y->src[1]->ne[2] == 1 && y->src[1]->ne[3] == 1 && y->ne[2] == 1 && y->ne[3] == 1,
                "kernel must have three dimensions, data two");
    GCUDAI_WANT(y, gcudai_param_i32(y, 1) == 0 && gcudai_param_i32(y, 2) == 1, "padding is %d and dilation %d, want 0 and 1",
                (int) gcudai_param_i32(y, 1), (int) gcudai_param_i32(y, 2));
    return gcudai_conv_transpose_2d_check(y);
}

static double gcudai_conv_transpose_cost(const struct gcuda_conv_transpose_args * p) {
    const double s = (double) p->stride, kw = (double) p->kernel.ne[0], kh = (double) p->kernel.ne[1];
    return 2.0 + (double) p->x.ne[2] * (1.0 + kh / s) * (1.0 + kw / s + kw / 16.0);
}

static void gcudai_conv_transpose_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    union gcudai_args args;
    gcudai_conv_transpose_args(y, &args);
    gcudai_stretch_split(args.conv_transpose.y.ne, gcudai_conv_transpose_cost(&args.conv_transpose), w, 0);
}

// One row of the kernel over one row of the data: places w * stride + kw of the piece.
static void gcudai_conv_transpose_row(const struct gcuda_conv_transpose_args * p, const struct gcudai_stretch * c, const char * kernel, const char * data, float * sum) {
    const int64_t s = p->stride;
    float buf[GCUDAI_PIECE + 1];
    for (int64_t kw = 0; kw < p->kernel.ne[0]; ++kw) {
        const int64_t from = c->i0 - kw, last = from + c->n - 1; // of w * stride
        const int64_t w0 = from > 0 ? (from + s - 1) / s : 0, w1 = last < 0 ? 0 : GCUDAI_MIN(last / s + 1, p->x.ne[0]);
        if (w0 >= w1) {
            continue;
        }
        const float k = gcudai_float_at(p->kernel.type, kernel + (size_t) kw * p->kernel.nb[0]);
        const float * x = gcudai_floats(p->x.type, data + (size_t) w0 * p->x.nb[0], w1 - w0, buf);
        float * to = sum + (w0 * s - from);
        for (int64_t w = 0; w < w1 - w0; ++w) {
            to[w * s] += k * x[w];
        }
    }
}

static void gcudai_conv_transpose_2d_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_conv_transpose_args * p = &args->conv_transpose;
    float sum[GCUDAI_PIECE];
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_stretch c = gcudai_stretch_of(p->y.ne, gcudai_conv_transpose_cost(p), item);
        memset(sum, 0, sizeof(sum));
        for (int64_t kh = 0; kh < p->kernel.ne[1]; ++kh) {
            const int64_t h = (c.i1 - kh) / p->stride;
            if (c.i1 < kh || (c.i1 - kh) % p->stride != 0 || h >= p->x.ne[1]) {
                continue;
            }
            for (int64_t ic = 0; ic < p->x.ne[2]; ++ic) {
                gcudai_conv_transpose_row(p, &c, gcudai_at(&p->kernel, kh, c.i2, ic), gcudai_at(&p->x, h, ic, c.i3), sum);
            }
        }
        gcudai_stretch_store(&p->y, &c, sum);
    }
}

static void gcudai_conv_transpose_1d_cpu(const union gcudai_args * args, const struct gcudai_task * t) { gcudai_conv_transpose_2d_cpu(args, t); }

// >>op:conv_transpose_2d ------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_conv_transpose_2d_p0(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, int stride) {
    struct gcuda_tensor * src[] = { a, b };
    if (!gcudai_op_begin(ctx, GCUDA_OP_CONV_TRANSPOSE_2D, src, 2)) {
        return NULL;
    }
    const int64_t ne[4] = { gcudai_conv_transpose_extent(b->ne[0], a->ne[0], stride), gcudai_conv_transpose_extent(b->ne[1], a->ne[1], stride),
                            a->ne[2], b->ne[3] };
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_CONV_TRANSPOSE_2D, GCUDA_TYPE_F32, ne, src, 2);
    gcudai_set_param_i32(y, 0, stride);
    return gcudai_op_finish(ctx, y);
}

// >>op:pool_1d ----------------------------------------------------------------------------------------
// In F32, because paddings are real numbers; 0 when there is no output.
static int64_t gcudai_pool_extent(int64_t in, int32_t k, int32_t s, float p) {
    if (k < 1 || s < 1 || !(p >= 0.0f) || !(p < 1073741824.0f)) {
        return 0;
    }
    const float n = ((float) in + 2.0f * p - (float) k) / (float) s + 1.0f;
    return n >= 1.0f && n < 9e18f ? (int64_t) n : 0;
}

static bool gcudai_pool_padding_ok(struct gcuda_context * ctx, enum gcuda_op op, float p0, float p1) {
    const bool is_ok = p0 >= 0.0f && p0 < 1073741824.0f && p1 >= 0.0f && p1 < 1073741824.0f;
    if (!is_ok) {
        gcudai_op_error(ctx, op, "paddings are %g and %g, want at least 0 and below 2^30", (double) p0, (double) p1);
    }
    return is_ok;
}

struct gcuda_tensor * gcuda_pool_1d(struct gcuda_context * ctx, struct gcuda_tensor * a, enum gcuda_op_pool op, int k0, int s0, int p0) {
    struct gcuda_tensor * src[] = { a };
    if (!gcudai_op_begin(ctx, GCUDA_OP_POOL_1D, src, 1) || !gcudai_pool_padding_ok(ctx, GCUDA_OP_POOL_1D, (float) p0, 0.0f)) {
        return NULL;
    }
    const int32_t params[] = { (int32_t) op, k0, s0, p0 };
    const int64_t ne[4] = { gcudai_pool_extent(a->ne[0], k0, s0, (float) p0), a->ne[1], a->ne[2], a->ne[3] };
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_POOL_1D, GCUDA_TYPE_F32, ne, src, 1);
    gcudai_set_params_i32(y, params, 4);
    return gcudai_op_finish(ctx, y);
}

static void gcudai_pool_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    struct gcuda_pool_args * p = &args->pool;
    const bool is_1d = y->op == GCUDA_OP_POOL_1D, is_back = y->op == GCUDA_OP_POOL_2D_BACK;
    p->x = gcudai_array(y->src[is_back ? 1 : 0]);
    p->y = gcudai_array(y);
    p->dy = gcudai_array(is_back ? y->src[0] : NULL);
    p->op = (enum gcuda_op_pool) gcudai_param_i32(y, 0);
    p->k0 = gcudai_param_i32(y, 1);
    p->k1 = is_1d ? 1 : gcudai_param_i32(y, 2);
    p->s0 = gcudai_param_i32(y, is_1d ? 2 : 3);
    p->s1 = is_1d ? 1 : gcudai_param_i32(y, 4);
    p->p0 = gcudai_param_i32(y, is_1d ? 3 : 5);
    p->p1 = is_1d ? 0 : gcudai_param_i32(y, 6);
}

// Stored paddings are whole numbers: what was cut off may have added outputs.
static gcuda_status gcudai_want_pool_axis(const struct gcuda_tensor * y, int axis, int64_t in, int64_t out, int32_t k, int32_t s, int32_t p) {
    GCUDAI_WANT(y, k >= 1 && s >= 1 && p >= 0, "axis %d: window %d, stride %d, padding %d; want window and stride >= 1, padding >= 0",
                axis, (int) k, (int) s, (int) p);
    const int64_t least = gcudai_pool_extent(in, k, s, (float) p), most = gcudai_pool_extent(in, k, s, (float) p + 1.0f);
    GCUDAI_WANT(y, out >= 1 && out >= least && out <= most, "axis %d: %lld elements, window %d, stride %d and padding %d cannot give %lld outputs",
                axis, (long long) in, (int) k, (int) s, (int) p, (long long) out);
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_want_pool(const struct gcuda_tensor * y, const struct gcuda_pool_args * p, const int64_t * pooled) {
    GCUDAI_WANT(y, p->op == GCUDA_OP_POOL_MAX || p->op == GCUDA_OP_POOL_AVG, "pooling %d does not exist", (int) p->op);
    GCUDAI_TRY(gcudai_want_type(y, y, GCUDA_TYPE_F32));
    GCUDAI_TRY(gcudai_want_contiguous(y, y));
    GCUDAI_TRY(gcudai_want_pool_axis(y, 0, p->x.ne[0], pooled[0], p->k0, p->s0, p->p0));
    if (y->op == GCUDA_OP_POOL_1D) {
        GCUDAI_WANT(y, pooled[0] == gcudai_pool_extent(p->x.ne[0], p->k0, p->s0, (float) p->p0) && pooled[1] == p->x.ne[1],
                    "result must have the rows of the source, shortened");
    } else {
        GCUDAI_TRY(gcudai_want_pool_axis(y, 1, p->x.ne[1], pooled[1], p->k1, p->s1, p->p1));
    }
    GCUDAI_WANT(y, pooled[2] == p->x.ne[2] && pooled[3] == p->x.ne[3], "dimensions 2 and 3 must be those of the image");
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_pool_1d_check(const struct gcuda_tensor * y) {
    union gcudai_args args;
    gcudai_pool_args(y, &args);
    GCUDAI_TRY(gcudai_want_float(y, y->src[0]));
    return gcudai_want_pool(y, &args.pool, y->ne);
}

static double gcudai_pool_cost(const struct gcuda_pool_args * p) {
    return 4.0 + 2.0 * (double) GCUDAI_MIN((int64_t) p->k0, p->x.ne[0]) * (double) GCUDAI_MIN((int64_t) p->k1, p->x.ne[1]);
}

static void gcudai_pool_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    union gcudai_args args;
    gcudai_pool_args(y, &args);
    gcudai_stretch_split(y->ne, gcudai_pool_cost(&args.pool), w, 0);
}

// The part of a window that lies in the image.
struct gcudai_pool_window {
    int64_t x0, x1, y0, y1;
    const char * plane;
};

static struct gcudai_pool_window gcudai_pool_window_of(const struct gcuda_pool_args * p, int64_t ox, int64_t oy, int64_t i2, int64_t i3) {
    const int64_t x = ox * p->s0 - p->p0, y = oy * p->s1 - p->p1;
    struct gcudai_pool_window w;
    w.x0 = GCUDAI_MAX(x, 0);
    w.x1 = GCUDAI_MIN(x + p->k0, p->x.ne[0]);
    w.y0 = GCUDAI_MAX(y, 0);
    w.y1 = GCUDAI_MIN(y + p->k1, p->x.ne[1]);
    w.plane = gcudai_at(&p->x, 0, i2, i3);
    return w;
}

static double gcudai_pool_sum(const struct gcuda_pool_args * p, const struct gcudai_pool_window * w) {
    double sum = 0.0;
    for (int64_t y = w->y0; y < w->y1; ++y) {
        for (int64_t x = w->x0; x < w->x1; ++x) {
            sum += (double) gcudai_float_at(p->x.type, w->plane + (size_t) y * p->x.nb[1] + (size_t) x * p->x.nb[0]);
        }
    }
    return sum;
}

// The largest value, and where in the plane its first occurrence is: y * width + x, or -1.
static float gcudai_pool_max(const struct gcuda_pool_args * p, const struct gcudai_pool_window * w, int64_t * at) {
    float max = -FLT_MAX;
    *at = -1;
    for (int64_t y = w->y0; y < w->y1; ++y) {
        for (int64_t x = w->x0; x < w->x1; ++x) {
            const float v = gcudai_float_at(p->x.type, w->plane + (size_t) y * p->x.nb[1] + (size_t) x * p->x.nb[0]);
            if (v > max) {
                max = v;
                *at = y * p->x.ne[0] + x;
            }
        }
    }
    return max;
}

static void gcudai_pool_1d_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_pool_args * p = &args->pool;
    const double scale = 1.0 / ((double) p->k0 * (double) p->k1);
    float buf[GCUDAI_PIECE];
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_stretch c = gcudai_stretch_of(p->y.ne, gcudai_pool_cost(p), item);
        for (int64_t i = 0; i < c.n; ++i) {
            const struct gcudai_pool_window w = gcudai_pool_window_of(p, c.i0 + i, c.i1, c.i2, c.i3);
            int64_t at = 0;
            buf[i] = p->op == GCUDA_OP_POOL_MAX ? gcudai_pool_max(p, &w, &at) : (float) (gcudai_pool_sum(p, &w) * scale);
        }
        gcudai_stretch_store(&p->y, &c, buf);
    }
}

// >>op:pool_2d ----------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_pool_2d(struct gcuda_context * ctx, struct gcuda_tensor * a, enum gcuda_op_pool op, int k0, int k1, int s0, int s1, float p0, float p1) {
    struct gcuda_tensor * src[] = { a };
    if (!gcudai_op_begin(ctx, GCUDA_OP_POOL_2D, src, 1) || !gcudai_pool_padding_ok(ctx, GCUDA_OP_POOL_2D, p0, p1)) {
        return NULL;
    }
    const int32_t params[] = { (int32_t) op, k0, k1, s0, s1, (int32_t) p0, (int32_t) p1 };
    const int64_t ne[4] = { gcudai_pool_extent(a->ne[0], k0, s0, p0), gcudai_pool_extent(a->ne[1], k1, s1, p1), a->ne[2], a->ne[3] };
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_POOL_2D, GCUDA_TYPE_F32, ne, src, 1);
    gcudai_set_params_i32(y, params, 7);
    return gcudai_op_finish(ctx, y);
}

static gcuda_status gcudai_pool_2d_check(const struct gcuda_tensor * y) { return gcudai_pool_1d_check(y); }
static void gcudai_pool_2d_cpu(const union gcudai_args * args, const struct gcudai_task * t) { gcudai_pool_1d_cpu(args, t); }

// >>op:pool_2d_back -----------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_pool_2d_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * af, enum gcuda_op_pool op, int k0, int k1, int s0, int s1, float p0, float p1) {
    struct gcuda_tensor * src[] = { a, af };
    if (!gcudai_op_begin(ctx, GCUDA_OP_POOL_2D_BACK, src, 2) || !gcudai_pool_padding_ok(ctx, GCUDA_OP_POOL_2D_BACK, p0, p1)) {
        return NULL;
    }
    const int32_t params[] = { (int32_t) op, k0, k1, s0, s1, (int32_t) p0, (int32_t) p1 };
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_POOL_2D_BACK, GCUDA_TYPE_F32, af->ne, src, 2);
    gcudai_set_params_i32(y, params, 7);
    return gcudai_op_finish(ctx, y);
}

static gcuda_status gcudai_pool_2d_back_check(const struct gcuda_tensor * y) {
    union gcudai_args args;
    gcudai_pool_args(y, &args);
    GCUDAI_TRY(gcudai_want_float(y, y->src[0]));
    GCUDAI_TRY(gcudai_want_float(y, y->src[1]));
    GCUDAI_TRY(gcudai_want_like(y, y->src[1]));
    return gcudai_want_pool(y, &args.pool, y->src[0]->ne);
}

static double gcudai_pool_2d_back_cost(const struct gcuda_pool_args * p) {
    const double x = (double) GCUDAI_MIN((int64_t) p->k0 / p->s0 + 1, p->dy.ne[0]), y = (double) GCUDAI_MIN((int64_t) p->k1 / p->s1 + 1, p->dy.ne[1]);
    return 8.0 + 3.0 * x * y;
}

// Largest values first: where each window has its own. Then every element of the image collects from its windows.
static void gcudai_pool_2d_back_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    union gcudai_args args;
    gcudai_pool_args(y, &args);
    const struct gcuda_pool_args * p = &args.pool;
    w->n_phases = 2;
    gcudai_stretch_split(y->ne, gcudai_pool_2d_back_cost(p), w, 1);
    if (p->op == GCUDA_OP_POOL_MAX) {
        gcudai_stretch_split(p->dy.ne, gcudai_pool_cost(p), w, 0);
        if (!gcudai_mul_size((size_t) gcuda_nelements(y->src[0]), sizeof(int64_t), &w->shared_bytes)) {
            w->shared_bytes = SIZE_MAX;
        }
    }
}

static int64_t * gcudai_pool_winners(const struct gcuda_pool_args * p, const struct gcudai_task * t, int64_t i1, int64_t i2, int64_t i3) {
    return (int64_t *) (void *) t->shared + ((i3 * p->dy.ne[2] + i2) * p->dy.ne[1] + i1) * p->dy.ne[0];
}

static void gcudai_pool_find_winners(const struct gcuda_pool_args * p, const struct gcudai_task * t) {
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_stretch c = gcudai_stretch_of(p->dy.ne, gcudai_pool_cost(p), item);
        int64_t * to = gcudai_pool_winners(p, t, c.i1, c.i2, c.i3) + c.i0;
        for (int64_t i = 0; i < c.n; ++i) {
            const struct gcudai_pool_window w = gcudai_pool_window_of(p, c.i0 + i, c.i1, c.i2, c.i3);
            (void) gcudai_pool_max(p, &w, &to[i]);
        }
    }
}

// Outputs [first, end) have a window of k at o * s - p over place x.
static void gcudai_pool_over(int64_t x, int32_t k, int32_t s, int32_t p, int64_t n, int64_t * first, int64_t * end) {
    const int64_t at = x + p;
    *first = at >= k ? (at - k) / s + 1 : 0;
    *end = GCUDAI_MIN(at / s + 1, n);
}

static float gcudai_pool_gradient(const struct gcuda_pool_args * p, const struct gcudai_task * t, int64_t x, const struct gcudai_stretch * c) {
    int64_t ox0, ox1, oy0, oy1;
    double sum = 0.0;
    gcudai_pool_over(x, p->k0, p->s0, p->p0, p->dy.ne[0], &ox0, &ox1);
    gcudai_pool_over(c->i1, p->k1, p->s1, p->p1, p->dy.ne[1], &oy0, &oy1);
    for (int64_t oy = oy0; oy < oy1; ++oy) {
        const int64_t * winners = p->op == GCUDA_OP_POOL_MAX ? gcudai_pool_winners(p, t, oy, c->i2, c->i3) : NULL;
        const char * dy = gcudai_at(&p->dy, oy, c->i2, c->i3);
        for (int64_t ox = ox0; ox < ox1; ++ox) {
            if (winners == NULL || winners[ox] == c->i1 * p->x.ne[0] + x) {
                sum += (double) gcudai_float_at(p->dy.type, dy + (size_t) ox * p->dy.nb[0]);
            }
        }
    }
    return (float) (p->op == GCUDA_OP_POOL_MAX ? sum : sum / ((double) p->k0 * (double) p->k1));
}

static void gcudai_pool_2d_back_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_pool_args * p = &args->pool;
    float buf[GCUDAI_PIECE];
    if (t->phase == 0) {
        gcudai_pool_find_winners(p, t);
        return;
    }
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_stretch c = gcudai_stretch_of(p->y.ne, gcudai_pool_2d_back_cost(p), item);
        for (int64_t i = 0; i < c.n; ++i) {
            buf[i] = gcudai_pool_gradient(p, t, c.i0 + i, &c);
        }
        gcudai_stretch_store(&p->y, &c, buf);
    }
}

// >>op:upscale ----------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_interpolate(struct gcuda_context * ctx, struct gcuda_tensor * a, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3, uint32_t mode) {
    struct gcuda_tensor * src[] = { a };
    if (!gcudai_op_begin(ctx, GCUDA_OP_UPSCALE, src, 1)) {
        return NULL;
    }
    const int64_t ne[4] = { ne0, ne1, ne2, ne3 };
    struct gcuda_tensor * y = gcudai_op_new(ctx, GCUDA_OP_UPSCALE, gcudai_is_float(a->type) ? a->type : GCUDA_TYPE_F32, ne, src, 1);
    gcudai_set_param_i32(y, 0, (int32_t) (mode & 0x7fffffffu));
    return gcudai_op_finish(ctx, y);
}

struct gcuda_tensor * gcuda_upscale(struct gcuda_context * ctx, struct gcuda_tensor * a, int scale_factor, enum gcuda_scale_mode mode) {
    struct gcuda_tensor * src[] = { a };
    if (!gcudai_op_begin(ctx, GCUDA_OP_UPSCALE, src, 1)) {
        return NULL;
    }
    if (scale_factor < 2) {
        return gcudai_op_error(ctx, GCUDA_OP_UPSCALE, "factor is %d, want at least 2", scale_factor);
    }
    return gcuda_interpolate(ctx, a, gcudai_product(a->ne[0], scale_factor, 1, 1), gcudai_product(a->ne[1], scale_factor, 1, 1), a->ne[2], a->ne[3], (uint32_t) mode);
}

struct gcuda_tensor * gcuda_upscale_ext(struct gcuda_context * ctx, struct gcuda_tensor * a, int ne0, int ne1, int ne2, int ne3, enum gcuda_scale_mode mode) {
    return gcuda_interpolate(ctx, a, ne0, ne1, ne2, ne3, (uint32_t) mode);
}

static gcuda_status gcudai_upscale_check(const struct gcuda_tensor * y) {
    const uint32_t mode = (uint32_t) gcudai_param_i32(y, 0), flags = mode & ~0xffu;
    GCUDAI_TRY(gcudai_want_float(y, y->src[0]));
    GCUDAI_TRY(gcudai_want_type(y, y, y->src[0]->type));
    GCUDAI_TRY(gcudai_want_contiguous(y, y));
    GCUDAI_WANT(y, (mode & 0xffu) < (uint32_t) GCUDA_SCALE_MODE_COUNT && (flags & ~(uint32_t) (GCUDA_SCALE_FLAG_ALIGN_CORNERS | GCUDA_SCALE_FLAG_ANTIALIAS)) == 0,
                "mode 0x%x does not exist", (unsigned) mode);
    GCUDAI_WANT(y, (flags & (uint32_t) GCUDA_SCALE_FLAG_ANTIALIAS) == 0 || (mode & 0xffu) == (uint32_t) GCUDA_SCALE_MODE_BILINEAR,
                "mode 0x%x: only the bilinear one has antialiasing", (unsigned) mode);
    GCUDAI_WANT(y, gcuda_is_empty(y) || !gcuda_is_empty(y->src[0]), "nothing cannot be scaled to something");
    return GCUDA_STATUS_SUCCESS;
}

static void gcudai_upscale_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    const int32_t mode = gcudai_param_i32(y, 0);
    args->upscale.x = gcudai_array(y->src[0]);
    args->upscale.y = gcudai_array(y);
    args->upscale.mode = (enum gcuda_scale_mode) (mode & 0xff);
    args->upscale.align_corners = (mode & GCUDA_SCALE_FLAG_ALIGN_CORNERS) != 0;
    args->upscale.antialias = (mode & GCUDA_SCALE_FLAG_ANTIALIAS) != 0;
}

// Output pixels per source pixel along an axis. In F32 and used as a divisor, as everyone does: the last bit decides
// between neighbours.
static float gcudai_upscale_factor(const struct gcuda_upscale_args * p, int axis) {
    const int64_t in = p->x.ne[axis], out = p->y.ne[axis];
    return p->align_corners && axis < 2 && in > 1 && out > 1 ? (float) (out - 1) / (float) (in - 1) : (float) out / (float) in;
}

static int64_t gcudai_clamp_index(int64_t i, int64_t n) { return i < 0 ? 0 : i >= n ? n - 1 : i; }

static int64_t gcudai_upscale_nearest(const struct gcuda_upscale_args * p, int axis, int64_t i) {
    return gcudai_clamp_index((int64_t) ((float) i / gcudai_upscale_factor(p, axis)), p->x.ne[axis]);
}

// Source pixels of one output pixel along one axis.
struct gcudai_taps {
    int64_t first, n;  // the antialiased ones: adjacent, with weight max(0, 1 - |index - center| / reach)
    float center, reach;
    int64_t at[4];     // all others: indices and weights, n of them
    float w[4];
};

static void gcudai_taps_linear(struct gcudai_taps * t, float x, int64_t n) {
    const int64_t base = (int64_t) floorf(x);
    t->n = 2;
    t->at[0] = gcudai_clamp_index(base, n);
    t->at[1] = gcudai_clamp_index(base + 1, n);
    const float d = x - (float) t->at[0];
    t->w[1] = d < 0.0f ? 0.0f : d > 1.0f ? 1.0f : d;
    t->w[0] = 1.0f - t->w[1];
}

static void gcudai_taps_cubic(struct gcudai_taps * t, float x, int64_t n) {
    const float a = -0.75f, base = floorf(x), d = x - base;
    t->n = 4;
    for (int i = 0; i < 4; ++i) {
        const float z = i < 2 ? d + (float) (1 - i) : (float) (i - 1) - d; // distance from x
        t->at[i] = gcudai_clamp_index((int64_t) base + i - 1, n);
        t->w[i] = i == 1 || i == 2 ? ((a + 2.0f) * z - (a + 3.0f)) * z * z + 1.0f : ((a * z - 5.0f * a) * z + 8.0f * a) * z - 4.0f * a;
    }
}

static struct gcudai_taps gcudai_upscale_taps(const struct gcuda_upscale_args * p, int axis, int64_t i) {
    const float offset = p->align_corners ? 0.0f : 0.5f, factor = gcudai_upscale_factor(p, axis);
    const float center = ((float) i + offset) / factor;
    const int64_t n = p->x.ne[axis];
    struct gcudai_taps t;
    GCUDAI_ZERO(t);
    if (p->mode == GCUDA_SCALE_MODE_NEAREST) {
        t.n = 1;
        t.at[0] = gcudai_upscale_nearest(p, axis, i);
        t.w[0] = 1.0f;
    } else if (p->mode == GCUDA_SCALE_MODE_BICUBIC) {
        gcudai_taps_cubic(&t, center - offset, n);
    } else if (!p->antialias) {
        gcudai_taps_linear(&t, center - offset, n);
    } else {
        t.reach = GCUDAI_MAX(1.0f, 1.0f / factor);
        t.center = center - offset;
        t.first = GCUDAI_MAX((int64_t) (center - t.reach + offset), 0);
        t.n = GCUDAI_MAX(GCUDAI_MIN((int64_t) (center + t.reach + offset), n) - t.first, 0);
    }
    return t;
}

static float gcudai_tap_weight(const struct gcudai_taps * t, int64_t at) {
    const float w = 1.0f - fabsf(((float) at - t->center) / t->reach);
    return w > 0.0f ? w : 0.0f;
}

static float gcudai_upscale_few(const struct gcuda_upscale_args * p, const struct gcudai_taps * x, const struct gcudai_taps * y, const char * plane) {
    float sum = 0.0f;
    for (int64_t k = 0; k < y->n; ++k) {
        const char * row = plane + (size_t) y->at[k] * p->x.nb[1];
        float part = 0.0f;
        for (int64_t i = 0; i < x->n; ++i) {
            part += x->w[i] * gcudai_float_at(p->x.type, row + (size_t) x->at[i] * p->x.nb[0]);
        }
        sum += y->w[k] * part;
    }
    return sum;
}

static float gcudai_upscale_many(const struct gcuda_upscale_args * p, const struct gcudai_taps * x, const struct gcudai_taps * y, const char * plane) {
    double sum = 0.0, weight = 0.0;
    for (int64_t k = y->first; k < y->first + y->n; ++k) {
        const char * row = plane + (size_t) k * p->x.nb[1];
        const float wy = gcudai_tap_weight(y, k);
        for (int64_t i = x->first; i < x->first + x->n; ++i) {
            const double w = (double) (wy * gcudai_tap_weight(x, i));
            sum += w * (double) gcudai_float_at(p->x.type, row + (size_t) i * p->x.nb[0]);
            weight += w;
        }
    }
    return weight > 0.0 ? (float) (sum / weight) : 0.0f;
}

static double gcudai_upscale_cost(const struct gcuda_upscale_args * p) {
    if (!p->antialias) {
        return p->mode == GCUDA_SCALE_MODE_NEAREST ? 20.0 : p->mode == GCUDA_SCALE_MODE_BILINEAR ? 40.0 : 100.0;
    }
    double taps = 4.0;
    for (int axis = 0; axis < 2; ++axis) {
        taps *= 2.0 * (double) GCUDAI_MAX(1.0f, 1.0f / gcudai_upscale_factor(p, axis)) + 1.0;
    }
    return 30.0 + taps;
}

static void gcudai_upscale_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    union gcudai_args args;
    gcudai_upscale_args(y, &args);
    gcudai_stretch_split(y->ne, gcudai_upscale_cost(&args.upscale), w, 0);
}

static void gcudai_upscale_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_upscale_args * p = &args->upscale;
    float buf[GCUDAI_PIECE];
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_stretch c = gcudai_stretch_of(p->y.ne, gcudai_upscale_cost(p), item);
        const char * plane = gcudai_at(&p->x, 0, gcudai_upscale_nearest(p, 2, c.i2), gcudai_upscale_nearest(p, 3, c.i3));
        const struct gcudai_taps y = gcudai_upscale_taps(p, 1, c.i1);
        for (int64_t i = 0; i < c.n; ++i) {
            const struct gcudai_taps x = gcudai_upscale_taps(p, 0, c.i0 + i);
            buf[i] = p->antialias ? gcudai_upscale_many(p, &x, &y, plane) : gcudai_upscale_few(p, &x, &y, plane);
        }
        gcudai_stretch_store(&p->y, &c, buf);
    }
}

// >>op:ssm_conv ---------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_ssm_conv(struct gcuda_context * ctx, struct gcuda_tensor * sx, struct gcuda_tensor * c) {
    struct gcuda_tensor * src[] = { sx, c };
    if (!gcudai_op_begin(ctx, GCUDA_OP_SSM_CONV, src, 2)) {
        return NULL;
    }
    const int64_t ne[4] = { sx->ne[1], GCUDAI_MAX(sx->ne[0] - c->ne[0] + 1, 0), sx->ne[2], 1 };
    return gcudai_op_finish(ctx, gcudai_op_new(ctx, GCUDA_OP_SSM_CONV, GCUDA_TYPE_F32, ne, src, 2));
}

static gcuda_status gcudai_ssm_conv_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * sx = y->src[0];
    const struct gcuda_tensor * c = y->src[1];
    GCUDAI_TRY(gcudai_want_float(y, sx));
    GCUDAI_TRY(gcudai_want_float(y, c));
    GCUDAI_TRY(gcudai_want_contiguous(y, c));
    GCUDAI_TRY(gcudai_want_rows(y, sx));
    GCUDAI_WANT(y, sx->ne[1] <= 1 || sx->nb[1] == sx->nb[0] * (size_t) sx->ne[0], "rows of '%s' must follow each other", sx->name);
    GCUDAI_WANT(y, sx->ne[3] == 1 && gcuda_is_matrix(c), "inputs must have three dimensions, weights two");
    GCUDAI_WANT(y, c->ne[1] == sx->ne[1], "%lld channels, and weights for %lld", (long long) sx->ne[1], (long long) c->ne[1]);
    GCUDAI_WANT(y, c->ne[0] >= 1 && sx->ne[0] >= c->ne[0] - 1, "rows of %lld are too short for %lld weights", (long long) sx->ne[0], (long long) c->ne[0]);
    GCUDAI_TRY(gcudai_want_type(y, y, GCUDA_TYPE_F32));
    GCUDAI_TRY(gcudai_want_contiguous(y, y));
    return gcudai_want_shape(y, sx->ne[1], sx->ne[0] - c->ne[0] + 1, sx->ne[2], 1);
}

static void gcudai_ssm_conv_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->ssm_conv.x = gcudai_array(y->src[0]);
    args->ssm_conv.c = gcudai_array(y->src[1]);
    args->ssm_conv.y = gcudai_array(y);
}

static double gcudai_ssm_conv_cost(int64_t k) { return 4.0 + 2.0 * (double) k; }

static void gcudai_ssm_conv_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    gcudai_stretch_split(y->ne, gcudai_ssm_conv_cost(y->src[1]->ne[0]), w, 0);
}

static void gcudai_ssm_conv_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_ssm_conv_args * p = &args->ssm_conv;
    const int64_t n_taps = p->c.ne[0];
    const bool is_f32 = p->x.type == GCUDA_TYPE_F32 && p->c.type == GCUDA_TYPE_F32;
    float buf[GCUDAI_PIECE];
    for (int64_t item = t->i0; item < t->i1; ++item) {
        const struct gcudai_stretch c = gcudai_stretch_of(p->y.ne, gcudai_ssm_conv_cost(n_taps), item);
        for (int64_t i = 0; i < c.n; ++i) {
            const char * x = gcudai_at(&p->x, c.i0 + i, c.i2, 0) + (size_t) c.i1 * p->x.nb[0];
            const char * w = gcudai_at(&p->c, c.i0 + i, 0, 0);
            float sum = 0.0f;
            for (int64_t k = 0; k < n_taps; ++k) {
                sum += is_f32 ? ((const float *) (const void *) x)[k] * ((const float *) (const void *) w)[k]
                              : gcudai_float_at(p->x.type, x + (size_t) k * p->x.nb[0]) * gcudai_float_at(p->c.type, w + (size_t) k * p->c.nb[0]);
            }
            buf[i] = sum;
        }
        gcudai_stretch_store(&p->y, &c, buf);
    }
}

// >>op:ssm_scan ---------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_ssm_scan(struct gcuda_context * ctx, struct gcuda_tensor * s, struct gcuda_tensor * x, struct gcuda_tensor * dt, struct gcuda_tensor * A, struct gcuda_tensor * B, struct gcuda_tensor * C, struct gcuda_tensor * ids) {
    struct gcuda_tensor * src[] = { s, x, dt, A, B, C, ids };
    if (!gcudai_op_begin(ctx, GCUDA_OP_SSM_SCAN, src, 7)) {
        return NULL;
    }
    const int64_t n_y = gcudai_product(x->ne[0], x->ne[1], x->ne[2], x->ne[3]), n_s = gcudai_product(s->ne[0], x->ne[0], x->ne[1], x->ne[3]);
    int64_t n = 0;
    const int64_t ne[4] = { gcudai_add_i64(n_y, n_s, &n) ? n : -1, 1, 1, 1 };
    return gcudai_op_finish(ctx, gcudai_op_new(ctx, GCUDA_OP_SSM_SCAN, GCUDA_TYPE_F32, ne, src, 7));
}

static gcuda_status gcudai_want_ne(const struct gcuda_tensor * y, int i, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    const int64_t * ne = y->src[i]->ne;
    GCUDAI_WANT(y, ne[0] == ne0 && ne[1] == ne1 && ne[2] == ne2 && ne[3] == ne3, "source %d must be [%lld, %lld, %lld, %lld]", i,
                (long long) ne0, (long long) ne1, (long long) ne2, (long long) ne3);
    return GCUDA_STATUS_SUCCESS;
}

// Dimensions 0 and 1 packed, the others anywhere.
static gcuda_status gcudai_want_planes(const struct gcuda_tensor * y, const struct gcuda_tensor * t) {
    GCUDAI_TRY(gcudai_want_rows(y, t));
    GCUDAI_WANT(y, t->ne[1] <= 1 || t->nb[1] == t->nb[0] * (size_t) t->ne[0], "rows of '%s' must follow each other", t->name);
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_ssm_scan_check(const struct gcuda_tensor * y) {
    const int64_t * s = y->src[0]->ne; // N, P, H, pool
    const int64_t * x = y->src[1]->ne; // P, H, T, S
    const int64_t * a = y->src[3]->ne;
    const int64_t * b = y->src[4]->ne; // N, G, T, S
    for (int i = 1; i < 6; ++i) {
        GCUDAI_TRY(gcudai_want_float(y, y->src[i]));
    }
    GCUDAI_TRY(gcudai_want_type(y, y->src[0], GCUDA_TYPE_F32));
    GCUDAI_TRY(gcudai_want_type(y, y->src[6], GCUDA_TYPE_I32));
    GCUDAI_TRY(gcudai_want_contiguous(y, y->src[0]));
    GCUDAI_TRY(gcudai_want_planes(y, y->src[1]));
    GCUDAI_TRY(gcudai_want_contiguous(y, y->src[2]));
    GCUDAI_TRY(gcudai_want_contiguous(y, y->src[3]));
    GCUDAI_TRY(gcudai_want_planes(y, y->src[4]));
    GCUDAI_TRY(gcudai_want_planes(y, y->src[5]));
    GCUDAI_TRY(gcudai_want_contiguous(y, y->src[6]));
    GCUDAI_WANT(y, s[1] == x[0] && s[2] == x[1], "states must be [N, %lld, %lld, at least %lld]", (long long) x[0], (long long) x[1], (long long) x[3]);
    GCUDAI_WANT(y, s[3] >= x[3], "%lld sequences, and %lld states", (long long) x[3], (long long) s[3]);
    GCUDAI_TRY(gcudai_want_ne(y, 2, x[1], x[2], x[3], 1));
    GCUDAI_TRY(gcudai_want_ne(y, 3, a[0] == 1 ? 1 : s[0], x[1], 1, 1));
    GCUDAI_TRY(gcudai_want_ne(y, 4, s[0], b[1], x[2], x[3]));
    GCUDAI_TRY(gcudai_want_ne(y, 5, b[0], b[1], b[2], b[3]));
    GCUDAI_TRY(gcudai_want_ne(y, 6, x[3], 1, 1, 1));
    GCUDAI_WANT(y, gcudai_divides(b[1], x[1]), "%lld heads are no multiple of %lld groups", (long long) x[1], (long long) b[1]);
    GCUDAI_TRY(gcudai_want_type(y, y, GCUDA_TYPE_F32));
    GCUDAI_TRY(gcudai_want_contiguous(y, y));
    return gcudai_want_shape(y, gcudai_product(x[0], x[1], x[2], x[3]) + gcudai_product(s[0], x[0], x[1], x[3]), 1, 1, 1);
}

static void gcudai_ssm_scan_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    struct gcuda_ssm_scan_args * p = &args->ssm_scan;
    p->s = gcudai_array(y->src[0]);
    p->x = gcudai_array(y->src[1]);
    p->dt = gcudai_array(y->src[2]);
    p->a = gcudai_array(y->src[3]);
    p->b = gcudai_array(y->src[4]);
    p->c = gcudai_array(y->src[5]);
    p->ids = gcudai_array(y->src[6]);
    p->y = gcudai_array(y);
}

// An item is one channel of one head of one sequence, over all tokens.
static void gcudai_ssm_scan_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    const int64_t * x = y->src[1]->ne;
    const int64_t n = y->src[0]->ne[0];
    w->n_items[0] = x[0] * x[1] * x[3];
    w->item_cost[0] = 50.0 + (double) n + (double) x[2] * (60.0 + (double) n * (y->src[3]->ne[0] == 1 ? 1.0 : 15.0));
    w->local_bytes = 3 * sizeof(float) * (size_t) n;
}

// One token: st = st * decay + b * xd, element by element; returns the sum of st * c. decay has one element, or n.
static float gcudai_ssm_step(float * GCUDAI_RESTRICT st, const float * GCUDAI_RESTRICT decay, bool is_one, const float * GCUDAI_RESTRICT b,
                             const float * GCUDAI_RESTRICT c, float xd, int64_t n) {
    float s[GCUDAI_LANES], sum = 0.0f;
    const float all = decay[0];
    int64_t i = 0;
    memset(s, 0, sizeof(s));
    for (; is_one && i + GCUDAI_LANES <= n; i += GCUDAI_LANES) {
        for (int l = 0; l < GCUDAI_LANES; ++l) {
            const float v = st[i + l] * all + b[i + l] * xd;
            st[i + l] = v;
            s[l] += v * c[i + l];
        }
    }
    for (int l = 0; l < GCUDAI_LANES; ++l) {
        sum += s[l];
    }
    for (; i < n; ++i) {
        st[i] = st[i] * (is_one ? all : decay[i]) + b[i] * xd;
        sum += st[i] * c[i];
    }
    return sum;
}

// State of sequence q to begin with; zeros when its index is out of range.
static void gcudai_ssm_begin(const struct gcuda_ssm_scan_args * p, int64_t channel, int64_t h, int64_t q, float * st, const struct gcudai_task * t) {
    const size_t n_bytes = (size_t) p->s.ne[0] * sizeof(float);
    const int64_t id = ((const int32_t *) p->ids.data)[q];
    if (id >= 0 && id < p->s.ne[3]) {
        memcpy(st, gcudai_at(&p->s, channel, h, id), n_bytes);
        return;
    }
    memset(st, 0, n_bytes);
    if (channel == 0 && h == 0) {
        gcudai_bad_index(t, q, id, p->s.ne[3]);
    }
}

static void gcudai_ssm_scan_item(const struct gcuda_ssm_scan_args * p, int64_t item, const struct gcudai_task * t) {
    const int64_t channel = item % p->x.ne[0], h = item / p->x.ne[0] % p->x.ne[1], q = item / p->x.ne[0] / p->x.ne[1];
    const int64_t n = p->s.ne[0], n_tokens = p->x.ne[2], g = h / (p->x.ne[1] / p->b.ne[1]);
    const bool is_one = p->a.ne[0] == 1;
    const char * a = gcudai_at(&p->a, h, 0, 0);
    float * local = (float *) (void *) t->local;
    float * y = (float *) p->y.data + (q * n_tokens * p->x.ne[1] + h) * p->x.ne[0] + channel;
    float * st = (float *) p->y.data + p->x.ne[0] * p->x.ne[1] * n_tokens * p->x.ne[3] + item * n;
    gcudai_ssm_begin(p, channel, h, q, st, t);
    for (int64_t token = 0; token < n_tokens; ++token) {
        const float z = gcudai_float_at(p->dt.type, gcudai_at(&p->dt, token, q, 0) + (size_t) h * p->dt.nb[0]);
        const float delta = z > 20.0f ? z : log1pf(expf(z));
        const float xd = delta * gcudai_float_at(p->x.type, gcudai_at(&p->x, h, token, q) + (size_t) channel * p->x.nb[0]);
        const float * b = gcudai_floats(p->b.type, gcudai_at(&p->b, g, token, q), n, local + n);
        const float * c = gcudai_floats(p->c.type, gcudai_at(&p->c, g, token, q), n, local + 2 * n);
        for (int64_t i = 0; i < (is_one ? 1 : n); ++i) {
            local[i] = expf(delta * gcudai_float_at(p->a.type, a + (size_t) i * p->a.nb[0]));
        }
        y[token * p->x.ne[1] * p->x.ne[0]] = gcudai_ssm_step(st, local, is_one, b, c, xd, n);
    }
}

static void gcudai_ssm_scan_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    for (int64_t item = t->i0; item < t->i1; ++item) {
        gcudai_ssm_scan_item(&args->ssm_scan, item, t);
    }
}

// ---- recurrences with a matrix per head ----

// What rwkv_wkv6, rwkv_wkv7 and gated_linear_attn have in common. src: n inputs [Z, H, T], one of them (short_one, or -1)
// only [Z, H], then the state.
static struct gcuda_tensor * gcudai_linear_attn(struct gcuda_context * ctx, enum gcuda_op op, struct gcuda_tensor * const * src, int n) {
    if (!gcudai_op_begin(ctx, op, src, n)) {
        return NULL;
    }
    const int64_t * x = src[0]->ne;
    const int64_t n_states = gcudai_product(x[0], src[n - 1]->ne[1], 1, 1);
    int64_t n_rows = 0;
    const int64_t ne[4] = { gcudai_product(x[0], x[1], 1, 1), gcudai_add_i64(x[2], n_states, &n_rows) ? n_rows : -1, 1, 1 };
    return gcudai_op_new(ctx, op, GCUDA_TYPE_F32, ne, src, n);
}

static gcuda_status gcudai_linear_attn_check(const struct gcuda_tensor * y, int n, int short_one) {
    const struct gcuda_tensor * state = y->src[n - 1];
    const int64_t * x = y->src[0]->ne;
    const int64_t n_seqs = state->ne[1];
    for (int i = 0; i < n - 1; ++i) {
        GCUDAI_TRY(gcudai_want_float(y, y->src[i]));
        GCUDAI_TRY(gcudai_want_contiguous(y, y->src[i]));
        GCUDAI_TRY(gcudai_want_ne(y, i, x[0], x[1], i == short_one ? 1 : x[2], 1));
    }
    GCUDAI_TRY(gcudai_want_type(y, state, GCUDA_TYPE_F32));
    GCUDAI_TRY(gcudai_want_contiguous(y, state));
    GCUDAI_WANT(y, gcuda_nelements(state) == gcudai_product(x[0], x[0], x[1], n_seqs), "state must have %lld * %lld * %lld elements for each of %lld sequences",
                (long long) x[0], (long long) x[0], (long long) x[1], (long long) n_seqs);
    GCUDAI_WANT(y, gcudai_divides(n_seqs, x[2]), "%lld tokens are not those of %lld equal sequences", (long long) x[2], (long long) n_seqs);
    GCUDAI_TRY(gcudai_want_type(y, y, GCUDA_TYPE_F32));
    GCUDAI_TRY(gcudai_want_contiguous(y, y));
    int64_t n_rows = 0;
    GCUDAI_WANT(y, gcudai_add_i64(x[2], gcudai_product(x[0], n_seqs, 1, 1), &n_rows), "too many sequences");
    return gcudai_want_shape(y, x[0] * x[1], n_rows, 1, 1);
}

// An item is a block of values of one head of one sequence, over all tokens: columns of the state, rows for rwkv_wkv7.
#define GCUDAI_LINEAR_BLOCK GCUDAI_LANES
struct gcudai_linear {
    int64_t size, n_heads, n_tokens, n_seqs, n_blocks; // tokens of one sequence
    int64_t q, h, j0, n;                               // the item
    float * y;     // result of its first token
    float * state; // of its head
};

static struct gcudai_linear gcudai_linear_plan(const struct gcuda_array * k, const struct gcuda_array * state, const struct gcuda_array * y) {
    struct gcudai_linear c;
    GCUDAI_ZERO(c);
    c.size = k->ne[0];
    c.n_heads = k->ne[1];
    c.n_seqs = state->ne[1];
    c.n_tokens = k->ne[2] / c.n_seqs;
    c.n_blocks = (c.size + GCUDAI_LINEAR_BLOCK - 1) / GCUDAI_LINEAR_BLOCK;
    c.y = (float *) y->data;
    return c;
}

static void gcudai_linear_attn_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    int last = 0;
    while (last + 1 < GCUDA_MAX_SRC && y->src[last + 1] != NULL) {
        ++last;
    }
    const struct gcuda_array k = gcudai_array(y->src[0]), state = gcudai_array(y->src[last]), result = gcudai_array(y);
    const struct gcudai_linear c = gcudai_linear_plan(&k, &state, &result);
    w->n_items[0] = c.n_seqs * c.n_heads * c.n_blocks;
    w->item_cost[0] = 50.0 + (double) c.size * (double) c.n_tokens * GCUDAI_LINEAR_BLOCK;
    w->local_bytes = 6 * sizeof(float) * (size_t) c.size;
}

// Sets c to an item and copies its share of the state to the result, where it is updated.
static void gcudai_linear_begin(struct gcudai_linear * c, const struct gcuda_array * k, const struct gcuda_array * state, const struct gcuda_array * y, int64_t item, bool is_rows) {
    const int64_t block = item % c->n_blocks, n = c->size, row = c->n_heads * n;
    c->h = item / c->n_blocks % c->n_heads;
    c->q = item / c->n_blocks / c->n_heads;
    c->j0 = block * GCUDAI_LINEAR_BLOCK;
    c->n = GCUDAI_MIN(GCUDAI_LINEAR_BLOCK, n - c->j0);
    c->y = (float *) y->data + c->q * c->n_tokens * row + c->h * n + c->j0;
    c->state = (float *) y->data + k->ne[2] * row + (c->q * c->n_heads + c->h) * n * n;
    const float * from = (const float *) state->data + (c->q * c->n_heads + c->h) * n * n;
    for (int64_t i = 0; i < (is_rows ? c->n : n); ++i) {
        const int64_t at = is_rows ? (c->j0 + i) * n : i * n + c->j0;
        memcpy(c->state + at, from + at, (size_t) (is_rows ? n : c->n) * sizeof(float));
    }
}

// Input number i of token t of the item's sequence; number i of the scratch is used unless it is F32.
static const float * gcudai_linear_input(const struct gcudai_linear * c, const struct gcuda_array * a, int64_t token, int i, char * local) {
    return gcudai_floats(a->type, gcudai_at(a, c->h, c->q * c->n_tokens + token, 0), c->size, (float *) (void *) local + i * c->size);
}

// >>op:rwkv_wkv6 --------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_rwkv_wkv6(struct gcuda_context * ctx, struct gcuda_tensor * k, struct gcuda_tensor * v, struct gcuda_tensor * r, struct gcuda_tensor * tf, struct gcuda_tensor * td, struct gcuda_tensor * state) {
    struct gcuda_tensor * src[] = { k, v, r, tf, td, state };
    return gcudai_op_finish(ctx, gcudai_linear_attn(ctx, GCUDA_OP_RWKV_WKV6, src, 6));
}

static gcuda_status gcudai_rwkv_wkv6_check(const struct gcuda_tensor * y) { return gcudai_linear_attn_check(y, 6, 3); }

static void gcudai_rwkv_wkv6_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    struct gcuda_rwkv_wkv6_args * p = &args->rwkv_wkv6;
    p->k = gcudai_array(y->src[0]);
    p->v = gcudai_array(y->src[1]);
    p->r = gcudai_array(y->src[2]);
    p->tf = gcudai_array(y->src[3]);
    p->td = gcudai_array(y->src[4]);
    p->state = gcudai_array(y->src[5]);
    p->y = gcudai_array(y);
}

// One key of one token over n values: y += r * (tf * k * v + w), w = w * td + k * v.
static GCUDAI_INLINE void gcudai_wkv6_key(float * GCUDAI_RESTRICT w, float * GCUDAI_RESTRICT y, const float * GCUDAI_RESTRICT v, float k, float r, float tf, float td, int64_t n) {
    for (int64_t j = 0; j < n; ++j) {
        const float kv = k * v[j];
        y[j] += r * (tf * kv + w[j]);
        w[j] = w[j] * td + kv;
    }
}

static void gcudai_rwkv_wkv6_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_rwkv_wkv6_args * p = &args->rwkv_wkv6;
    struct gcudai_linear c = gcudai_linear_plan(&p->k, &p->state, &p->y);
    for (int64_t item = t->i0; item < t->i1; ++item) {
        gcudai_linear_begin(&c, &p->k, &p->state, &p->y, item, false);
        const float * tf = gcudai_floats(p->tf.type, gcudai_at(&p->tf, c.h, 0, 0), c.size, (float *) (void *) t->local + 4 * c.size);
        for (int64_t token = 0; token < c.n_tokens; ++token) {
            const float * k = gcudai_linear_input(&c, &p->k, token, 0, t->local);
            const float * v = gcudai_linear_input(&c, &p->v, token, 1, t->local) + c.j0;
            const float * r = gcudai_linear_input(&c, &p->r, token, 2, t->local);
            const float * td = gcudai_linear_input(&c, &p->td, token, 3, t->local);
            float sum[GCUDAI_LINEAR_BLOCK];
            memset(sum, 0, sizeof(sum));
            for (int64_t i = 0; i < c.size; ++i) {
                float * w = c.state + i * c.size + c.j0;
                if (c.n == GCUDAI_LINEAR_BLOCK) {
                    gcudai_wkv6_key(w, sum, v, k[i], r[i], tf[i], td[i], GCUDAI_LINEAR_BLOCK);
                } else {
                    gcudai_wkv6_key(w, sum, v, k[i], r[i], tf[i], td[i], c.n);
                }
            }
            memcpy(c.y + token * c.n_heads * c.size, sum, (size_t) c.n * sizeof(float));
        }
    }
}

// >>op:gated_linear_attn ------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_gated_linear_attn(struct gcuda_context * ctx, struct gcuda_tensor * k, struct gcuda_tensor * v, struct gcuda_tensor * q, struct gcuda_tensor * g, struct gcuda_tensor * state, float scale) {
    struct gcuda_tensor * src[] = { k, v, q, g, state };
    struct gcuda_tensor * y = gcudai_linear_attn(ctx, GCUDA_OP_GATED_LINEAR_ATTN, src, 5);
    gcudai_set_param_f32(y, 0, scale);
    return gcudai_op_finish(ctx, y);
}

static gcuda_status gcudai_gated_linear_attn_check(const struct gcuda_tensor * y) { return gcudai_linear_attn_check(y, 5, -1); }

static void gcudai_gated_linear_attn_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    struct gcuda_gated_linear_attn_args * p = &args->gated_linear_attn;
    p->k = gcudai_array(y->src[0]);
    p->v = gcudai_array(y->src[1]);
    p->q = gcudai_array(y->src[2]);
    p->g = gcudai_array(y->src[3]);
    p->state = gcudai_array(y->src[4]);
    p->y = gcudai_array(y);
    p->scale = gcudai_param_f32(y, 0);
}

static GCUDAI_INLINE void gcudai_gla_key(float * GCUDAI_RESTRICT w, float * GCUDAI_RESTRICT y, const float * GCUDAI_RESTRICT v, float k, float q, float g, int64_t n) {
    for (int64_t j = 0; j < n; ++j) {
        w[j] = w[j] * g + k * v[j];
        y[j] += q * w[j];
    }
}

static void gcudai_gated_linear_attn_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_gated_linear_attn_args * p = &args->gated_linear_attn;
    struct gcudai_linear c = gcudai_linear_plan(&p->k, &p->state, &p->y);
    for (int64_t item = t->i0; item < t->i1; ++item) {
        gcudai_linear_begin(&c, &p->k, &p->state, &p->y, item, false);
        for (int64_t token = 0; token < c.n_tokens; ++token) {
            const float * k = gcudai_linear_input(&c, &p->k, token, 0, t->local);
            const float * v = gcudai_linear_input(&c, &p->v, token, 1, t->local) + c.j0;
            const float * q = gcudai_linear_input(&c, &p->q, token, 2, t->local);
            const float * g = gcudai_linear_input(&c, &p->g, token, 3, t->local);
            float sum[GCUDAI_LINEAR_BLOCK];
            memset(sum, 0, sizeof(sum));
            for (int64_t i = 0; i < c.size; ++i) {
                float * w = c.state + i * c.size + c.j0;
                if (c.n == GCUDAI_LINEAR_BLOCK) {
                    gcudai_gla_key(w, sum, v, k[i], q[i], g[i], GCUDAI_LINEAR_BLOCK);
                } else {
                    gcudai_gla_key(w, sum, v, k[i], q[i], g[i], c.n);
                }
            }
            for (int64_t j = 0; j < c.n; ++j) {
                c.y[token * c.n_heads * c.size + j] = p->scale * sum[j];
            }
        }
    }
}

// >>op:rwkv_wkv7 --------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_rwkv_wkv7(struct gcuda_context * ctx, struct gcuda_tensor * r, struct gcuda_tensor * w, struct gcuda_tensor * k, struct gcuda_tensor * v, struct gcuda_tensor * a, struct gcuda_tensor * b, struct gcuda_tensor * state) {
    struct gcuda_tensor * src[] = { r, w, k, v, a, b, state };
    return gcudai_op_finish(ctx, gcudai_linear_attn(ctx, GCUDA_OP_RWKV_WKV7, src, 7));
}

static gcuda_status gcudai_rwkv_wkv7_check(const struct gcuda_tensor * y) { return gcudai_linear_attn_check(y, 7, -1); }

static void gcudai_rwkv_wkv7_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    struct gcuda_rwkv_wkv7_args * p = &args->rwkv_wkv7;
    p->r = gcudai_array(y->src[0]);
    p->w = gcudai_array(y->src[1]);
    p->k = gcudai_array(y->src[2]);
    p->v = gcudai_array(y->src[3]);
    p->a = gcudai_array(y->src[4]);
    p->b = gcudai_array(y->src[5]);
    p->state = gcudai_array(y->src[6]);
    p->y = gcudai_array(y);
}

// One value of one token: row = row * w + v * k + sa * b; returns the sum of row * r.
static float gcudai_wkv7_row(float * GCUDAI_RESTRICT row, const float * GCUDAI_RESTRICT r, const float * GCUDAI_RESTRICT w, const float * GCUDAI_RESTRICT k,
                             const float * GCUDAI_RESTRICT b, float v, float sa, int64_t n) {
    float s[GCUDAI_LANES], sum = 0.0f;
    int64_t j = 0;
    memset(s, 0, sizeof(s));
    for (; j + GCUDAI_LANES <= n; j += GCUDAI_LANES) {
        for (int l = 0; l < GCUDAI_LANES; ++l) {
            const float x = row[j + l] * w[j + l] + v * k[j + l] + sa * b[j + l];
            row[j + l] = x;
            s[l] += x * r[j + l];
        }
    }
    for (int l = 0; l < GCUDAI_LANES; ++l) {
        sum += s[l];
    }
    for (; j < n; ++j) {
        row[j] = row[j] * w[j] + v * k[j] + sa * b[j];
        sum += row[j] * r[j];
    }
    return sum;
}

static void gcudai_rwkv_wkv7_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    const struct gcuda_rwkv_wkv7_args * p = &args->rwkv_wkv7;
    const gcudai_lane_dot_fn dot = gcudai_lane_is_avx2() ? gcudai_lane_dot_avx2 : gcudai_lane_dot_any;
    struct gcudai_linear c = gcudai_linear_plan(&p->k, &p->state, &p->y);
    for (int64_t item = t->i0; item < t->i1; ++item) {
        gcudai_linear_begin(&c, &p->k, &p->state, &p->y, item, true);
        for (int64_t token = 0; token < c.n_tokens; ++token) {
            const float * r = gcudai_linear_input(&c, &p->r, token, 0, t->local);
            const float * w = gcudai_linear_input(&c, &p->w, token, 1, t->local);
            const float * k = gcudai_linear_input(&c, &p->k, token, 2, t->local);
            const float * v = gcudai_linear_input(&c, &p->v, token, 3, t->local);
            const float * a = gcudai_linear_input(&c, &p->a, token, 4, t->local);
            const float * b = gcudai_linear_input(&c, &p->b, token, 5, t->local);
            for (int64_t i = 0; i < c.n; ++i) {
                float * row = c.state + (c.j0 + i) * c.size;
                c.y[token * c.n_heads * c.size + i] = gcudai_wkv7_row(row, r, w, k, b, v[c.j0 + i], dot(a, row, c.size), c.size);
            }
        }
    }
}

// >>op:solve_tri --------------------------------------------------------------------------------------
struct gcuda_tensor * gcuda_solve_tri(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b, bool left, bool lower, bool uni) {
    struct gcuda_tensor * src[] = { a, b };
    if (!gcudai_op_begin(ctx, GCUDA_OP_SOLVE_TRI, src, 2)) {
        return NULL;
    }
    if (!left || !lower || uni) {
        return gcudai_op_error(ctx, GCUDA_OP_SOLVE_TRI, "left %d, lower %d, uni %d; only 1, 1, 0 exists", left ? 1 : 0, lower ? 1 : 0, uni ? 1 : 0);
    }
    return gcudai_op_finish(ctx, gcudai_op_new(ctx, GCUDA_OP_SOLVE_TRI, GCUDA_TYPE_F32, b->ne, src, 2));
}

static gcuda_status gcudai_solve_tri_check(const struct gcuda_tensor * y) {
    const struct gcuda_tensor * a = y->src[0];
    const struct gcuda_tensor * b = y->src[1];
    GCUDAI_TRY(gcudai_want_float(y, a));
    GCUDAI_TRY(gcudai_want_float(y, b));
    GCUDAI_TRY(gcudai_want_rows(y, a));
    GCUDAI_TRY(gcudai_want_rows(y, b));
    GCUDAI_WANT(y, a->ne[0] == a->ne[1], "matrix must be square");
    GCUDAI_WANT(y, a->ne[1] == b->ne[1] && a->ne[2] == b->ne[2] && a->ne[3] == b->ne[3], "extents 1 to 3 must be equal");
    GCUDAI_TRY(gcudai_want_type(y, y, GCUDA_TYPE_F32));
    GCUDAI_TRY(gcudai_want_contiguous(y, y));
    return gcudai_want_like(y, b);
}

static void gcudai_solve_tri_args(const struct gcuda_tensor * y, union gcudai_args * args) {
    args->solve_tri.a = gcudai_array(y->src[0]);
    args->solve_tri.b = gcudai_array(y->src[1]);
    args->solve_tri.y = gcudai_array(y);
}

// An item is a block of columns of one right side.
#define GCUDAI_SOLVE_BLOCK 8

static void gcudai_solve_tri_work(const struct gcuda_tensor * y, struct gcudai_work * w) {
    const double n = (double) y->ne[1];
    w->n_items[0] = (y->ne[0] + GCUDAI_SOLVE_BLOCK - 1) / GCUDAI_SOLVE_BLOCK * y->ne[2] * y->ne[3];
    w->item_cost[0] = 50.0 + n * (20.0 + n * 0.5 * GCUDAI_SOLVE_BLOCK * 0.7);
    w->local_bytes = (size_t) y->ne[1] * (sizeof(float) + GCUDAI_SOLVE_BLOCK * sizeof(double));
}

// The columns found so far stay in double: what is rounded early in a substitution is multiplied all the way.
static void gcudai_solve_tri_item(const struct gcuda_solve_tri_args * p, int64_t item, char * local) {
    const int64_t n_blocks = (p->y.ne[0] + GCUDAI_SOLVE_BLOCK - 1) / GCUDAI_SOLVE_BLOCK, n = p->y.ne[1];
    const int64_t c0 = item % n_blocks * GCUDAI_SOLVE_BLOCK, n_cols = GCUDAI_MIN(GCUDAI_SOLVE_BLOCK, p->y.ne[0] - c0);
    const int64_t i2 = item / n_blocks % p->y.ne[2], i3 = item / n_blocks / p->y.ne[2];
    double * x = (double *) (void *) local;
    float * row = (float *) (void *) (x + n * GCUDAI_SOLVE_BLOCK);
    for (int64_t i = 0; i < n; ++i) {
        const float * a = gcudai_floats(p->a.type, gcudai_at(&p->a, i, i2, i3), i + 1, row);
        const char * b = gcudai_at(&p->b, i, i2, i3) + (size_t) c0 * p->b.nb[0];
        float * y = (float *) (void *) gcudai_at(&p->y, i, i2, i3) + c0;
        double rest[GCUDAI_SOLVE_BLOCK];
        memset(rest, 0, sizeof(rest));
        for (int64_t c = 0; c < n_cols; ++c) {
            rest[c] = (double) gcudai_float_at(p->b.type, b + (size_t) c * p->b.nb[0]);
        }
        for (int64_t k = 0; k < i; ++k) {
            const double w = (double) a[k];
            for (int64_t c = 0; c < GCUDAI_SOLVE_BLOCK; ++c) {
                rest[c] -= w * x[k * GCUDAI_SOLVE_BLOCK + c];
            }
        }
        for (int64_t c = 0; c < n_cols; ++c) {
            x[i * GCUDAI_SOLVE_BLOCK + c] = rest[c] / (double) a[i];
            y[c] = (float) x[i * GCUDAI_SOLVE_BLOCK + c];
        }
        for (int64_t c = n_cols; c < GCUDAI_SOLVE_BLOCK; ++c) {
            x[i * GCUDAI_SOLVE_BLOCK + c] = 0.0;
        }
    }
}

static void gcudai_solve_tri_cpu(const union gcudai_args * args, const struct gcudai_task * t) {
    for (int64_t item = t->i0; item < t->i1; ++item) {
        gcudai_solve_tri_item(&args->solve_tri, item, t->local);
    }
}

// ---------------- end of ops-c ----------------

// =====================================================================================================
// >>impl-registry   the tables made from GCUDA_OPS; nothing else lists operations
// =====================================================================================================

static const struct gcudai_op_info gcudai_ops[GCUDA_OP_COUNT] = {
    { "NONE", "none", 0, 10, GCUDAI_OP_VIEW, gcudai_none_check, gcudai_none_args, gcudai_none_work, gcudai_any_can, gcudai_none_cpu },
#define X(ID, name, n_src, n_opt, flags, args, work, can) \
    { #ID, #name, n_src, n_opt, flags, gcudai_##name##_check, gcudai_##args##_args, gcudai_##work##_work, gcudai_##can##_can, gcudai_##name##_cpu },
    GCUDA_OPS(X)
#undef X
};

static const struct gcudai_op_info * gcudai_op_row(enum gcuda_op op) {
    return (int) op >= 0 && (int) op < GCUDA_OP_COUNT ? &gcudai_ops[op] : NULL;
}

const char * gcuda_op_name(enum gcuda_op op) {
    const struct gcudai_op_info * info = gcudai_op_row(op);
    return info ? info->id : "invalid";
}

const char * gcuda_op_desc(const struct gcuda_tensor * tensor) {
    const char * sub = tensor ? gcudai_sub_op_name(tensor) : NULL;
    return sub ? sub : tensor ? gcuda_op_name(tensor->op) : "";
}

// Nodes that nothing runs for.
static bool gcudai_is_noop(const struct gcuda_tensor * t) {
    const struct gcudai_op_info * info = gcudai_op_row(t->op);
    return gcuda_is_empty(t) || info == NULL || (info->flags & GCUDAI_OP_VIEW) != 0;
}

// =====================================================================================================
// >>impl-graph   graphs
// =====================================================================================================

// Slots of the visited set: a power of two, at most half full.
static size_t gcudai_graph_hash_size(size_t size) {
    size_t n = 16;
    while (n < 4 * size) { // nodes and leafs, up to size each
        n *= 2;
    }
    return n;
}

#define GCUDAI_GRAPH_MAX_SIZE ((size_t) 1 << 28)

static size_t gcudai_graph_bytes(size_t size, bool grads) {
    const size_t hash = gcudai_graph_hash_size(size);
    const size_t head = gcudai_pad(sizeof(struct gcuda_cgraph), GCUDA_MEM_ALIGN);
    return head + 2 * size * sizeof(void *) + hash * (sizeof(void *) + sizeof(int32_t)) + (grads ? 2 * hash * sizeof(void *) : 0);
}

size_t gcuda_graph_overhead_custom(size_t size, bool grads) {
    return size > GCUDAI_GRAPH_MAX_SIZE ? 0 : GCUDAI_OBJECT_BYTES_PADDED + gcudai_pad(gcudai_graph_bytes(size, grads), GCUDA_MEM_ALIGN);
}

size_t gcuda_graph_overhead(void) { return gcuda_graph_overhead_custom(GCUDA_DEFAULT_GRAPH_SIZE, false); }

struct gcuda_cgraph * gcuda_new_graph_custom(struct gcuda_context * ctx, size_t size, bool grads) {
    if (ctx == NULL || size == 0 || size > GCUDAI_GRAPH_MAX_SIZE) {
        gcudai_latch(ctx, gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "new_graph: context is NULL, or size %llu (1 to %llu)",
                                      (unsigned long long) size, (unsigned long long) GCUDAI_GRAPH_MAX_SIZE));
        return NULL;
    }
    const size_t bytes = gcudai_graph_bytes(size, grads), hash = gcudai_graph_hash_size(size);
    char * p = (char *) gcudai_object_new(ctx, GCUDAI_OBJECT_GRAPH, bytes);
    if (p == NULL) {
        return NULL;
    }
    memset(p, 0, bytes);
    struct gcuda_cgraph * g = (struct gcuda_cgraph *) (void *) p;
    struct gcuda_tensor ** array = (struct gcuda_tensor **) (void *) (p + gcudai_pad(sizeof(*g), GCUDA_MEM_ALIGN));
    g->size = (int) size;
    g->ctx = ctx;
    g->hash_size = hash;
    g->nodes = array;
    g->leafs = array + size;
    g->hash_keys = array + 2 * size;
    array += 2 * size + hash;
    if (grads) {
        g->grads = array;
        g->grad_accs = array + hash;
        array += 2 * hash;
    }
    g->use_counts = (int32_t *) (void *) array;
    return g;
}

struct gcuda_cgraph * gcuda_new_graph(struct gcuda_context * ctx) { return gcuda_new_graph_custom(ctx, GCUDA_DEFAULT_GRAPH_SIZE, false); }

#define GCUDAI_NO_SLOT SIZE_MAX

// Slot where the tensor is or would be; GCUDAI_NO_SLOT when the set is full and does not hold it.
static size_t gcudai_graph_slot(const struct gcuda_cgraph * g, const struct gcuda_tensor * t) {
    const size_t mask = g->hash_size - 1;
    size_t i = (size_t) (((uint64_t) (uintptr_t) t >> 4) * 0x9e3779b97f4a7c15u >> 20) & mask;
    for (size_t n = 0; n < g->hash_size; ++n, i = (i + 1) & mask) {
        if (g->hash_keys[i] == NULL || g->hash_keys[i] == t) {
            return i;
        }
    }
    return GCUDAI_NO_SLOT;
}

// Slot of a tensor that the graph has visited, else GCUDAI_NO_SLOT.
static size_t gcudai_graph_find(const struct gcuda_cgraph * g, const struct gcuda_tensor * t) {
    const size_t i = t != NULL && g->hash_keys != NULL ? gcudai_graph_slot(g, t) : GCUDAI_NO_SLOT;
    return i != GCUDAI_NO_SLOT && g->hash_keys[i] == t ? i : GCUDAI_NO_SLOT;
}

int gcuda_graph_use_count(const struct gcuda_cgraph * graph, const struct gcuda_tensor * tensor) {
    const size_t i = gcudai_graph_find(graph, tensor);
    return i != GCUDAI_NO_SLOT ? graph->use_counts[i] : 0;
}

// What an expansion has reached, in the order of discovery; `parent` makes a stack of it, because recursion depth must
// not depend on the caller's graph.
struct gcudai_visit {
    struct gcuda_tensor * tensor;
    int next_src;
    size_t parent; // GCUDAI_NO_SLOT: none
};
struct gcudai_visits {
    struct gcudai_visit * items;
    size_t n, cap;
};

static bool gcudai_is_leaf(const struct gcuda_tensor * t) { return t->op == GCUDA_OP_NONE && !(t->flags & GCUDA_TENSOR_FLAG_PARAM); }

// Appends a tensor whose sources are all there.
static gcuda_status gcudai_graph_append(struct gcuda_cgraph * g, struct gcuda_tensor * t) {
    const bool is_leaf = gcudai_is_leaf(t);
    const int n = is_leaf ? g->n_leafs : g->n_nodes;
    if (n >= g->size) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "graph is full: %d %s, size %d, next is '%s'", n, is_leaf ? "leafs" : "nodes", g->size, t->name);
    }
    if (t->name[0] == '\0') {
        gcuda_format_name(t, is_leaf ? "leaf_%d" : "node_%d", n);
    }
    if (is_leaf) {
        g->leafs[g->n_leafs++] = t;
    } else {
        g->nodes[g->n_nodes++] = t;
        t->flags |= t->op != GCUDA_OP_NONE ? GCUDA_TENSOR_FLAG_COMPUTE : 0;
    }
    return GCUDA_STATUS_SUCCESS;
}

// Counts a reference, and remembers a tensor seen for the first time as a child of `parent`.
static gcuda_status gcudai_graph_discover(struct gcuda_cgraph * g, struct gcuda_tensor * t, struct gcudai_visits * v, size_t parent, bool * is_new) {
    const size_t slot = gcudai_graph_slot(g, t);
    if (slot == GCUDAI_NO_SLOT) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "graph is full: %d nodes and %d leafs, size %d", g->n_nodes, g->n_leafs, g->size);
    }
    *is_new = g->hash_keys[slot] == NULL;
    if (*is_new) {
        if (v->n == v->cap) {
            const size_t cap = v->cap ? v->cap * 2 : 256;
            struct gcudai_visit * items = (struct gcudai_visit *) gcudai_calloc(cap, sizeof(*items));
            if (items == NULL) {
                return GCUDA_STATUS_ALLOC_FAILED;
            }
            if (v->n > 0) {
                memcpy(items, v->items, v->n * sizeof(*items));
            }
            gcudai_free(v->items);
            v->items = items;
            v->cap = cap;
        }
        v->items[v->n].tensor = t;
        v->items[v->n].next_src = 0;
        v->items[v->n].parent = parent;
        v->n++;
        g->hash_keys[slot] = t;
    }
    g->use_counts[slot] += parent != GCUDAI_NO_SLOT;
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_graph_visit(struct gcuda_cgraph * g, struct gcuda_tensor * root, struct gcudai_visits * v) {
    bool is_new = false;
    GCUDAI_TRY(gcudai_graph_discover(g, root, v, GCUDAI_NO_SLOT, &is_new));
    for (size_t top = is_new ? 0 : GCUDAI_NO_SLOT; top != GCUDAI_NO_SLOT;) {
        struct gcuda_tensor * t = v->items[top].tensor;
        if (v->items[top].next_src == GCUDA_MAX_SRC) {
            GCUDAI_TRY(gcudai_graph_append(g, t));
            top = v->items[top].parent;
            continue;
        }
        struct gcuda_tensor * src = t->src[v->items[top].next_src++];
        if (src != NULL) {
            GCUDAI_TRY(gcudai_graph_discover(g, src, v, top, &is_new));
            top = is_new ? v->n - 1 : top;
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

// use_counts again from the node list.
static void gcudai_graph_recount(struct gcuda_cgraph * g) {
    memset(g->use_counts, 0, g->hash_size * sizeof(*g->use_counts));
    for (int i = 0; i < g->n_nodes; ++i) {
        for (int k = 0; k < GCUDA_MAX_SRC; ++k) {
            const size_t slot = gcudai_graph_find(g, g->nodes[i]->src[k]);
            if (slot != GCUDAI_NO_SLOT) {
                g->use_counts[slot]++;
            }
        }
    }
}

// The visited set of a fresh graph, from its lists. The set is at most half full: there is always a slot.
static void gcudai_graph_index(struct gcuda_cgraph * g) {
    for (int i = 0; i < g->n_leafs + g->n_nodes; ++i) {
        struct gcuda_tensor * t = i < g->n_leafs ? g->leafs[i] : g->nodes[i - g->n_leafs];
        g->hash_keys[gcudai_graph_slot(g, t)] = t;
    }
    gcudai_graph_recount(g);
}

// Takes a failed expansion back. Keys leave in the reverse order of their coming, so that no probe chain breaks and
// gradients keep their slots.
static void gcudai_graph_undo(struct gcuda_cgraph * g, int n_nodes, int n_leafs, const struct gcudai_visits * v) {
    for (size_t i = v->n; i-- > 0;) {
        g->hash_keys[gcudai_graph_slot(g, v->items[i].tensor)] = NULL;
    }
    g->n_nodes = n_nodes;
    g->n_leafs = n_leafs;
    gcudai_graph_recount(g);
}

static gcuda_status gcudai_graph_ready(const struct gcuda_cgraph * g, const char * what) {
    if (g == NULL) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "%s: graph is NULL", what);
    }
    if (g->ctx == NULL || g->hash_keys == NULL) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "%s: a view of a graph cannot grow", what);
    }
    if (g->ctx->error != GCUDA_STATUS_SUCCESS) {
        return gcuda_set_last_error(g->ctx->error, g->ctx->message);
    }
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status gcuda_build_forward_expand(struct gcuda_cgraph * graph, struct gcuda_tensor * tensor) {
    GCUDAI_TRY(gcudai_graph_ready(graph, "build_forward_expand"));
    if (tensor == NULL) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "build_forward_expand: tensor is NULL%s%.800s", gcudai_message[0] ? "; before: " : "", gcudai_message);
    }
    const int n_nodes = graph->n_nodes, n_leafs = graph->n_leafs;
    struct gcudai_visits visits;
    GCUDAI_ZERO(visits);
    const gcuda_status st = gcudai_graph_visit(graph, tensor, &visits);
    if (st != GCUDA_STATUS_SUCCESS) {
        gcudai_graph_undo(graph, n_nodes, n_leafs, &visits);
    }
    gcudai_free(visits.items);
    return st;
}

gcuda_status gcuda_graph_add_node(struct gcuda_cgraph * graph, struct gcuda_tensor * tensor) {
    GCUDAI_TRY(gcudai_graph_ready(graph, "graph_add_node"));
    if (tensor == NULL || graph->n_nodes >= graph->size) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "graph_add_node: tensor is NULL, or %d nodes fill the graph", graph->n_nodes);
    }
    const size_t slot = gcudai_graph_slot(graph, tensor);
    if (slot == GCUDAI_NO_SLOT) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "graph_add_node: the graph is full (size %d)", graph->size);
    }
    graph->hash_keys[slot] = tensor;
    for (int k = 0; k < GCUDA_MAX_SRC; ++k) {
        const size_t src_slot = gcudai_graph_find(graph, tensor->src[k]);
        if (src_slot != GCUDAI_NO_SLOT) {
            graph->use_counts[src_slot]++;
        }
    }
    graph->nodes[graph->n_nodes++] = tensor;
    return GCUDA_STATUS_SUCCESS;
}

struct gcuda_cgraph gcuda_graph_view(struct gcuda_cgraph * graph, int i0, int i1) {
    struct gcuda_cgraph v;
    GCUDAI_ZERO(v);
    if (graph != NULL) {
        i0 = GCUDAI_MAX(0, GCUDAI_MIN(i0, graph->n_nodes));
        i1 = GCUDAI_MAX(i0, GCUDAI_MIN(i1, graph->n_nodes));
        v = *graph;
        v.size = 0;
        v.nodes = graph->nodes + i0;
        v.n_nodes = i1 - i0;
        v.leafs = NULL;
        v.n_leafs = 0;
        v.ctx = NULL; // cannot grow
    }
    return v;
}

void gcuda_graph_clear(struct gcuda_cgraph * graph) {
    if (graph != NULL && graph->ctx != NULL) {
        graph->n_nodes = graph->n_leafs = 0;
        memset(graph->hash_keys, 0, graph->hash_size * sizeof(*graph->hash_keys));
        memset(graph->use_counts, 0, graph->hash_size * sizeof(*graph->use_counts));
        if (graph->grads != NULL) {
            memset(graph->grads, 0, graph->hash_size * sizeof(*graph->grads));
            memset(graph->grad_accs, 0, graph->hash_size * sizeof(*graph->grad_accs));
        }
    }
}

gcuda_status gcuda_graph_cpy(struct gcuda_cgraph * src, struct gcuda_cgraph * dst) {
    if (src == NULL || dst == NULL || dst->ctx == NULL || dst->size < src->n_nodes || dst->size < src->n_leafs) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "graph_cpy: a graph is NULL or a view, or %d nodes and %d leafs do not fit into %d",
                           src ? src->n_nodes : 0, src ? src->n_leafs : 0, dst ? dst->size : 0);
    }
    if (src == dst) {
        return GCUDA_STATUS_SUCCESS;
    }
    gcuda_graph_clear(dst);
    if (src->n_nodes > 0) {
        memcpy(dst->nodes, src->nodes, (size_t) src->n_nodes * sizeof(*dst->nodes));
    }
    if (src->n_leafs > 0) {
        memcpy(dst->leafs, src->leafs, (size_t) src->n_leafs * sizeof(*dst->leafs));
    }
    dst->n_nodes = src->n_nodes;
    dst->n_leafs = src->n_leafs;
    gcudai_graph_index(dst);
    for (size_t i = 0; src->grads != NULL && dst->grads != NULL && i < src->hash_size; ++i) {
        const size_t slot = gcudai_graph_find(dst, src->hash_keys[i]);
        if (slot != GCUDAI_NO_SLOT) {
            dst->grads[slot] = src->grads[i];
            dst->grad_accs[slot] = src->grad_accs[i];
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

struct gcuda_cgraph * gcuda_graph_dup(struct gcuda_context * ctx, struct gcuda_cgraph * graph, bool force_grads) {
    if (graph == NULL) {
        gcudai_latch(ctx, gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "graph_dup: graph is NULL"));
        return NULL;
    }
    const int size = GCUDAI_MAX(GCUDAI_MAX(graph->size, 1), GCUDAI_MAX(graph->n_nodes, graph->n_leafs));
    struct gcuda_cgraph * g = gcuda_new_graph_custom(ctx, (size_t) size, force_grads || graph->grads != NULL);
    return g != NULL && gcuda_graph_cpy(graph, g) == GCUDA_STATUS_SUCCESS ? g : NULL;
}

int gcuda_graph_size(const struct gcuda_cgraph * graph) { return graph ? graph->size : 0; }
int gcuda_graph_n_nodes(const struct gcuda_cgraph * graph) { return graph ? graph->n_nodes : 0; }
struct gcuda_tensor ** gcuda_graph_nodes(struct gcuda_cgraph * graph) { return graph ? graph->nodes : NULL; }

struct gcuda_tensor * gcuda_graph_node(const struct gcuda_cgraph * graph, int i) {
    const int n = gcuda_graph_n_nodes(graph);
    const int at = i < 0 ? n + i : i;
    return at >= 0 && at < n ? graph->nodes[at] : NULL;
}

struct gcuda_tensor * gcuda_graph_get_tensor(const struct gcuda_cgraph * graph, const char * name) {
    for (int i = 0; graph != NULL && name != NULL && i < graph->n_leafs; ++i) {
        if (strcmp(graph->leafs[i]->name, name) == 0) {
            return graph->leafs[i];
        }
    }
    for (int i = 0; graph != NULL && name != NULL && i < graph->n_nodes; ++i) {
        if (strcmp(graph->nodes[i]->name, name) == 0) {
            return graph->nodes[i];
        }
    }
    return NULL;
}

// ---- printing ----

static void gcudai_text_tensor(struct gcudai_text * out, int i, const struct gcuda_tensor * t) {
    gcudai_append(out, "%5d  %-18s %-7s [%6lld, %6lld, %6lld, %6lld]  %s%s%s%s  %s", i, gcuda_op_desc(t), gcuda_type_name(t->type),
                  (long long) t->ne[0], (long long) t->ne[1], (long long) t->ne[2], (long long) t->ne[3],
                  t->flags & GCUDA_TENSOR_FLAG_PARAM ? "p" : "-", t->flags & GCUDA_TENSOR_FLAG_INPUT ? "i" : "-",
                  t->flags & GCUDA_TENSOR_FLAG_OUTPUT ? "o" : "-", t->view_src ? "v" : "-", t->name);
    for (int k = 0; k < GCUDA_MAX_SRC; ++k) {
        if (t->src[k] != NULL) {
            gcudai_append(out, "%s%s", k == 0 ? "  <- " : ", ", t->src[k]->name);
        }
    }
    gcudai_append(out, "\n");
}

size_t gcuda_graph_to_text(const struct gcuda_cgraph * graph, char * text, size_t size) {
    struct gcudai_text out = { text, text ? size : 0, 0 };
    gcudai_append(&out, "%d nodes (p parameter, i input, o output, v view)\n", gcuda_graph_n_nodes(graph));
    for (int i = 0; graph != NULL && i < graph->n_nodes; ++i) {
        gcudai_text_tensor(&out, i, graph->nodes[i]);
    }
    gcudai_append(&out, "%d leafs\n", graph ? graph->n_leafs : 0);
    for (int i = 0; graph != NULL && i < graph->n_leafs; ++i) {
        gcudai_text_tensor(&out, i, graph->leafs[i]);
    }
    return out.used;
}

void gcuda_graph_print(const struct gcuda_cgraph * graph) {
    for (int i = 0; graph != NULL && i < graph->n_nodes + graph->n_leafs; ++i) {
        char line[GCUDAI_MESSAGE_BYTES];
        struct gcudai_text out = { line, sizeof(line), 0 };
        gcudai_text_tensor(&out, i, i < graph->n_nodes ? graph->nodes[i] : graph->leafs[i - graph->n_nodes]);
        line[strcspn(line, "\n")] = '\0';
        gcudai_log(GCUDA_LOG_LEVEL_INFO, "%s", line);
    }
}

// A name inside double quotes of the DOT language.
static void gcudai_append_quoted(struct gcudai_text * out, const char * s) {
    for (; *s != '\0'; ++s) {
        gcudai_append(out, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
    }
}

static void gcudai_dot_tensor(struct gcudai_text * out, const struct gcuda_tensor * t, const char * style) {
    gcudai_append(out, "  \"%p\" [%s, label=\"", (const void *) t, style);
    gcudai_append_quoted(out, t->name);
    gcudai_append(out, "\\n%s %s [%lld, %lld, %lld, %lld]\"];\n", gcuda_op_desc(t), gcuda_type_name(t->type),
                  (long long) t->ne[0], (long long) t->ne[1], (long long) t->ne[2], (long long) t->ne[3]);
    for (int k = 0; k < GCUDA_MAX_SRC; ++k) {
        if (t->src[k] != NULL) {
            gcudai_append(out, "  \"%p\" -> \"%p\" [label=\"%d\"];\n", (const void *) t->src[k], (const void *) t, k);
        }
    }
}

size_t gcuda_graph_to_dot(const struct gcuda_cgraph * graph, char * text, size_t size) {
    struct gcudai_text out = { text, text ? size : 0, 0 };
    gcudai_append(&out, "digraph gcuda {\n  node [shape=box, style=filled];\n");
    for (int i = 0; graph != NULL && i < graph->n_leafs; ++i) {
        gcudai_dot_tensor(&out, graph->leafs[i], "fillcolor=pink");
    }
    for (int i = 0; graph != NULL && i < graph->n_nodes; ++i) {
        const bool is_param = (graph->nodes[i]->flags & GCUDA_TENSOR_FLAG_PARAM) != 0;
        gcudai_dot_tensor(&out, graph->nodes[i], is_param ? "fillcolor=yellow" : "fillcolor=white");
    }
    gcudai_append(&out, "}\n");
    return out.used;
}

gcuda_status gcuda_graph_dump_dot(const struct gcuda_cgraph * graph, const char * filename) {
    const size_t size = gcuda_graph_to_dot(graph, NULL, 0);
    char * text = (char *) gcudai_alloc(size + 1);
    if (text == NULL) {
        return GCUDA_STATUS_ALLOC_FAILED;
    }
    gcuda_graph_to_dot(graph, text, size + 1);
    FILE * f = filename ? fopen(filename, "w") : NULL;
    const bool is_written = f != NULL && fwrite(text, 1, size, f) == size;
    const bool is_closed = f != NULL && fclose(f) == 0;
    gcudai_free(text);
    if (!is_written || !is_closed) {
        return gcudai_fail(GCUDA_STATUS_IO, "graph_dump_dot: cannot write '%s'", filename ? filename : "");
    }
    return GCUDA_STATUS_SUCCESS;
}

// =====================================================================================================
// >>impl-autodiff   derivatives
// =====================================================================================================

// =====================================================================================================
// >>impl-alloc   allocators
// =====================================================================================================

// ---- a map from tensors to small indices, in order of insertion ----

struct gcudai_map {
    const struct gcuda_tensor ** keys; // open addressing, a power of two
    size_t * values;
    size_t n, cap; // at most half full
};

static void gcudai_map_free(struct gcudai_map * m) {
    gcudai_free(m->keys);
    gcudai_free(m->values);
    GCUDAI_ZERO(*m);
}

static void gcudai_map_clear(struct gcudai_map * m) {
    m->n = 0;
    if (m->cap > 0) {
        memset(m->keys, 0, m->cap * sizeof(*m->keys));
    }
}

static size_t gcudai_map_slot(const struct gcudai_map * m, const struct gcuda_tensor * t) {
    size_t i = (size_t) (((uint64_t) (uintptr_t) t >> 4) * 0x9e3779b97f4a7c15u >> 20) & (m->cap - 1);
    while (m->keys[i] != NULL && m->keys[i] != t) {
        i = (i + 1) & (m->cap - 1);
    }
    return i;
}

#define GCUDAI_NONE SIZE_MAX

static size_t gcudai_map_get(const struct gcudai_map * m, const struct gcuda_tensor * t) {
    const size_t slot = m->cap > 0 && t != NULL ? gcudai_map_slot(m, t) : GCUDAI_NONE;
    return slot != GCUDAI_NONE && m->keys[slot] == t ? m->values[slot] : GCUDAI_NONE;
}

// Room for n tensors in all.
static gcuda_status gcudai_map_reserve(struct gcudai_map * m, size_t n) {
    struct gcudai_map bigger;
    if (n <= m->cap / 2) {
        return GCUDA_STATUS_SUCCESS;
    }
    GCUDAI_ZERO(bigger);
    bigger.cap = m->cap ? m->cap : 64;
    while (bigger.cap < 2 * n) {
        bigger.cap *= 2;
    }
    bigger.keys = (const struct gcuda_tensor **) gcudai_calloc(bigger.cap, sizeof(*bigger.keys));
    bigger.values = (size_t *) gcudai_calloc(bigger.cap, sizeof(*bigger.values));
    if (bigger.keys == NULL || bigger.values == NULL) {
        gcudai_map_free(&bigger);
        return GCUDA_STATUS_ALLOC_FAILED;
    }
    for (size_t i = 0; i < m->cap; ++i) {
        if (m->keys[i] != NULL) {
            const size_t slot = gcudai_map_slot(&bigger, m->keys[i]);
            bigger.keys[slot] = m->keys[i];
            bigger.values[slot] = m->values[i];
        }
    }
    bigger.n = m->n;
    gcudai_map_free(m);
    *m = bigger;
    return GCUDA_STATUS_SUCCESS;
}

// Index of the tensor, which is the number of tensors before it; *index == the old n when it is new.
static gcuda_status gcudai_map_add(struct gcudai_map * m, const struct gcuda_tensor * t, size_t * index) {
    GCUDAI_TRY(gcudai_map_reserve(m, m->n + 1));
    const size_t slot = gcudai_map_slot(m, t);
    if (m->keys[slot] == NULL) {
        m->keys[slot] = t;
        m->values[slot] = m->n++;
    }
    *index = m->values[slot];
    return GCUDA_STATUS_SUCCESS;
}

// ---- linear allocator ----

struct gcuda_tallocr gcuda_tallocr_new(gcuda_backend_buffer_t buffer) {
    struct gcuda_tallocr t;
    GCUDAI_ZERO(t);
    t.buffer = buffer;
    t.base = gcuda_backend_buffer_get_base(buffer);
    t.alignment = gcuda_backend_buffer_get_alignment(buffer);
    t.offset = (size_t) (-(uintptr_t) t.base) & (t.alignment - 1);
    return t;
}

gcuda_status gcuda_tallocr_alloc(struct gcuda_tallocr * talloc, struct gcuda_tensor * tensor) {
    size_t end = 0;
    if (talloc == NULL || talloc->buffer == NULL || tensor == NULL) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "tallocr_alloc: allocator, buffer or tensor is NULL");
    }
    GCUDAI_TRY(gcudai_check_tensor(tensor));
    const size_t size = gcudai_pad(gcuda_backend_buffer_get_alloc_size(talloc->buffer, tensor), talloc->alignment);
    const size_t total = gcuda_backend_buffer_get_size(talloc->buffer);
    if (!gcudai_add_size(talloc->offset, size, &end) || (size > 0 && end > gcudai_pad(total, talloc->alignment))) {
        return gcudai_fail(GCUDA_STATUS_ALLOC_FAILED, "tallocr_alloc: '%s' needs %llu bytes, %llu of %llu are free", tensor->name, (unsigned long long) size,
                           (unsigned long long) (total > talloc->offset ? total - talloc->offset : 0), (unsigned long long) total);
    }
    GCUDAI_TRY(gcuda_backend_tensor_alloc(talloc->buffer, tensor, talloc->base ? (char *) talloc->base + talloc->offset : NULL));
    talloc->offset = end;
    return GCUDA_STATUS_SUCCESS;
}

// ---- best-fit allocator of offsets: measures, holds no memory ----

struct gcudai_free_block {
    size_t offset, size;
};
struct gcudai_dyn {
    struct gcudai_free_block * blocks; // sorted by offset; the last one is the open end
    size_t n, cap;
    size_t alignment, max_size;
};

static gcuda_status gcudai_dyn_room(struct gcudai_dyn * d) {
    if (d->n < d->cap) {
        return GCUDA_STATUS_SUCCESS;
    }
    const size_t cap = d->cap ? d->cap * 2 : 64;
    struct gcudai_free_block * blocks = (struct gcudai_free_block *) gcudai_calloc(cap, sizeof(*blocks));
    if (blocks == NULL) {
        return GCUDA_STATUS_ALLOC_FAILED;
    }
    if (d->n > 0) {
        memcpy(blocks, d->blocks, d->n * sizeof(*blocks));
    }
    gcudai_free(d->blocks);
    d->blocks = blocks;
    d->cap = cap;
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_dyn_reset(struct gcudai_dyn * d, size_t alignment) {
    d->n = 0;
    GCUDAI_TRY(gcudai_dyn_room(d));
    d->n = 1;
    d->blocks[0].offset = 0;
    d->blocks[0].size = SIZE_MAX / 2;
    d->alignment = alignment;
    d->max_size = 0;
    return GCUDA_STATUS_SUCCESS;
}

static void gcudai_dyn_remove(struct gcudai_dyn * d, size_t i) {
    memmove(&d->blocks[i], &d->blocks[i + 1], (d->n - i - 1) * sizeof(*d->blocks));
    d->n--;
}

// The open end comes last, which keeps the total small; of equal blocks the later one.
static gcuda_status gcudai_dyn_alloc(struct gcudai_dyn * d, size_t size, size_t * offset) {
    size_t best = d->n - 1;
    size = gcudai_pad(size, d->alignment);
    *offset = 0;
    if (size == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    for (size_t i = 0; i + 1 < d->n; ++i) {
        if (d->blocks[i].size >= size && (best == d->n - 1 || d->blocks[i].size <= d->blocks[best].size)) {
            best = i;
        }
    }
    struct gcudai_free_block * b = &d->blocks[best];
    if (b->size < size) {
        return gcudai_fail(GCUDA_STATUS_ALLOC_FAILED, "graph allocator: %llu bytes do not fit into the address space", (unsigned long long) size);
    }
    *offset = b->offset;
    b->offset += size;
    b->size -= size;
    if (b->size == 0 && best + 1 < d->n) {
        gcudai_dyn_remove(d, best);
    }
    d->max_size = GCUDAI_MAX(d->max_size, *offset + size);
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_dyn_free(struct gcudai_dyn * d, size_t offset, size_t size) {
    size_t i = 0;
    size = gcudai_pad(size, d->alignment);
    if (size == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    while (i < d->n && d->blocks[i].offset < offset) {
        ++i;
    }
    const bool joins_before = i > 0 && d->blocks[i - 1].offset + d->blocks[i - 1].size == offset;
    const bool joins_after = i < d->n && offset + size == d->blocks[i].offset;
    if (joins_before) {
        d->blocks[i - 1].size += size + (joins_after ? d->blocks[i].size : 0);
        if (joins_after) {
            gcudai_dyn_remove(d, i);
        }
        return GCUDA_STATUS_SUCCESS;
    }
    if (joins_after) {
        d->blocks[i].offset = offset;
        d->blocks[i].size += size;
        return GCUDA_STATUS_SUCCESS;
    }
    GCUDAI_TRY(gcudai_dyn_room(d));
    memmove(&d->blocks[i + 1], &d->blocks[i], (d->n - i) * sizeof(*d->blocks));
    d->blocks[i].offset = offset;
    d->blocks[i].size = size;
    d->n++;
    return GCUDA_STATUS_SUCCESS;
}

// ---- graph allocator ----

// Life of a tensor while the graph is measured.
struct gcudai_life {
    int n_children; // sources still to come that name it
    int n_views;    // views of it that may still be read
    int buffer_id;
    bool is_allocated;
    size_t offset;
};

// Where a tensor goes; buffer_id -1: not ours.
struct gcudai_place {
    int buffer_id;
    size_t offset, size;
};
struct gcudai_node_places {
    struct gcudai_place node, src[GCUDA_MAX_SRC];
};

struct gcuda_gallocr {
    int n_bufs;
    gcuda_backend_buffer_type_t * bufts;
    int * owner; // first entry with the same type: it holds the buffer
    gcuda_backend_buffer_t * buffers;
    struct gcudai_dyn * dyns;
    struct gcudai_map map;
    struct gcudai_life * lives; // by index in map
    size_t n_lives;
    struct gcudai_node_places * nodes; // the plan
    struct gcudai_place * leafs;
    size_t cap_nodes, cap_leafs;
    int n_nodes, n_leafs;
    uint64_t structure; // of the planned graph
    bool has_plan;
};

void gcuda_gallocr_free(gcuda_gallocr_t g) {
    if (g == NULL) {
        return;
    }
    for (int i = 0; i < g->n_bufs; ++i) {
        if (g->buffers != NULL) {
            gcuda_backend_buffer_free(g->buffers[i]);
        }
        if (g->dyns != NULL) {
            gcudai_free(g->dyns[i].blocks);
        }
    }
    gcudai_map_free(&g->map);
    gcudai_free(g->bufts);
    gcudai_free(g->owner);
    gcudai_free(g->buffers);
    gcudai_free(g->dyns);
    gcudai_free(g->lives);
    gcudai_free(g->nodes);
    gcudai_free(g->leafs);
    gcudai_free(g);
}

gcuda_gallocr_t gcuda_gallocr_new_n(gcuda_backend_buffer_type_t * bufts, int n_bufs) {
    if (bufts == NULL || n_bufs < 1) {
        gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "gallocr_new: %d buffer types", n_bufs);
        return NULL;
    }
    gcuda_gallocr_t g = (gcuda_gallocr_t) gcudai_calloc(1, sizeof(*g));
    if (g == NULL) {
        return NULL;
    }
    g->n_bufs = n_bufs;
    g->bufts = (gcuda_backend_buffer_type_t *) gcudai_calloc((size_t) n_bufs, sizeof(*g->bufts));
    g->owner = (int *) gcudai_calloc((size_t) n_bufs, sizeof(*g->owner));
    g->buffers = (gcuda_backend_buffer_t *) gcudai_calloc((size_t) n_bufs, sizeof(*g->buffers));
    g->dyns = (struct gcudai_dyn *) gcudai_calloc((size_t) n_bufs, sizeof(*g->dyns));
    bool is_ok = g->bufts != NULL && g->owner != NULL && g->buffers != NULL && g->dyns != NULL;
    for (int i = 0; i < n_bufs && is_ok; ++i) {
        g->bufts[i] = bufts[i];
        while (g->bufts[g->owner[i]] != bufts[i]) {
            g->owner[i]++;
        }
        is_ok = bufts[i] != NULL;
        if (!is_ok) {
            gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "gallocr_new: buffer type %d is NULL", i);
        }
    }
    if (!is_ok) {
        gcuda_gallocr_free(g);
        return NULL;
    }
    return g;
}

gcuda_gallocr_t gcuda_gallocr_new(gcuda_backend_buffer_type_t buft) { return gcuda_gallocr_new_n(&buft, 1); }

static struct gcudai_life * gcudai_life_of(gcuda_gallocr_t g, const struct gcuda_tensor * t) { return &g->lives[gcudai_map_get(&g->map, t)]; }

// Enters everything the graph names into the map.
static gcuda_status gcudai_gallocr_index(gcuda_gallocr_t g, const struct gcuda_cgraph * graph) {
    size_t index = 0;
    gcudai_map_clear(&g->map);
    GCUDAI_TRY(gcudai_map_reserve(&g->map, (size_t) graph->n_leafs + (size_t) graph->n_nodes));
    for (int i = 0; i < graph->n_leafs + graph->n_nodes; ++i) {
        const struct gcuda_tensor * t = i < graph->n_leafs ? graph->leafs[i] : graph->nodes[i - graph->n_leafs];
        for (int k = 0; k <= GCUDA_MAX_SRC; ++k) { // sources first, then the tensor
            const struct gcuda_tensor * u = k < GCUDA_MAX_SRC ? t->src[k] : t;
            if (u != NULL && u->view_src != NULL) {
                GCUDAI_TRY(gcudai_map_add(&g->map, u->view_src, &index));
            }
            if (u != NULL) {
                GCUDAI_TRY(gcudai_map_add(&g->map, u, &index));
            }
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

static uint64_t gcudai_mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 29);
}

static uint64_t gcudai_mix_tensor(const struct gcudai_map * map, uint64_t h, const struct gcuda_tensor * t) {
    if (t == NULL) {
        return gcudai_mix(h, 0);
    }
    const int32_t flags = t->flags & (GCUDA_TENSOR_FLAG_INPUT | GCUDA_TENSOR_FLAG_OUTPUT);
    h = gcudai_mix(h, gcudai_map_get(map, t) + 1);
    h = gcudai_mix(h, t->view_src ? gcudai_map_get(map, t->view_src) + 1 : 0);
    return gcudai_mix(h, (uint64_t) (uint32_t) flags << 1 | (t->data != NULL));
}

// What a plan depends on besides sizes: operations, edges, flags, who has memory already, and which sources have the
// result's layout (those may have been taken over in place).
static uint64_t gcudai_gallocr_structure(const struct gcudai_map * map, const struct gcuda_cgraph * graph) {
    uint64_t h = gcudai_mix((uint64_t) graph->n_nodes, (uint64_t) graph->n_leafs);
    for (int i = 0; i < graph->n_leafs; ++i) {
        h = gcudai_mix_tensor(map, h, graph->leafs[i]);
    }
    for (int i = 0; i < graph->n_nodes; ++i) {
        const struct gcuda_tensor * t = graph->nodes[i];
        h = gcudai_mix(gcudai_mix_tensor(map, h, t), (uint64_t) t->op);
        for (int k = 0; k < GCUDA_MAX_SRC; ++k) {
            h = gcudai_mix_tensor(map, h, t->src[k]);
            h = gcudai_mix(h, t->src[k] != NULL && gcudai_same_layout(t, t->src[k]));
        }
    }
    return h;
}

static bool gcudai_is_ours(const struct gcuda_tensor * t) { return t->data == NULL && t->buffer == NULL && t->view_src == NULL; }

static size_t gcudai_gallocr_size(gcuda_gallocr_t g, const struct gcuda_tensor * t, int buffer_id) { return gcuda_backend_buft_get_alloc_size(g->bufts[buffer_id], t); }

// A source whose memory the node may take over: it dies here, and element for element it is read before it is written.
static const struct gcuda_tensor * gcudai_reusable(gcuda_gallocr_t g, const struct gcuda_tensor * t, int buffer_id) {
    const struct gcudai_op_info * info = gcudai_op_row(t->op);
    if (info == NULL || !(info->flags & (GCUDAI_OP_REUSE | GCUDAI_OP_REUSE_FIRST))) {
        return NULL;
    }
    for (int k = 0; k < ((info->flags & GCUDAI_OP_REUSE) ? GCUDA_MAX_SRC : 1); ++k) {
        const struct gcuda_tensor * p = t->src[k];
        if (p == NULL || p->view_src != NULL || (p->flags & GCUDA_TENSOR_FLAG_OUTPUT) || !gcudai_same_layout(t, p)) {
            continue;
        }
        const struct gcudai_life * life = gcudai_life_of(g, p);
        if (life->is_allocated && life->n_children == 1 && life->n_views == 0 && g->owner[life->buffer_id] == g->owner[buffer_id]) {
            return p;
        }
    }
    return NULL;
}

static gcuda_status gcudai_gallocr_take(gcuda_gallocr_t g, const struct gcuda_tensor * t, int buffer_id) {
    struct gcudai_life * life = gcudai_life_of(g, t);
    if (!gcudai_is_ours(t) || life->is_allocated) {
        return GCUDA_STATUS_SUCCESS;
    }
    const struct gcuda_tensor * p = gcudai_reusable(g, t, buffer_id);
    if (p != NULL) {
        struct gcudai_life * parent = gcudai_life_of(g, p);
        life->offset = parent->offset;
        parent->is_allocated = false;
    } else {
        GCUDAI_TRY(gcudai_dyn_alloc(&g->dyns[g->owner[buffer_id]], gcudai_gallocr_size(g, t, buffer_id), &life->offset));
    }
    life->buffer_id = buffer_id;
    life->is_allocated = true;
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_gallocr_drop(gcuda_gallocr_t g, const struct gcuda_tensor * t) {
    struct gcudai_life * life = gcudai_life_of(g, t);
    if (!life->is_allocated || (t->flags & GCUDA_TENSOR_FLAG_OUTPUT)) {
        return GCUDA_STATUS_SUCCESS;
    }
    life->is_allocated = false;
    return gcudai_dyn_free(&g->dyns[g->owner[life->buffer_id]], life->offset, gcudai_gallocr_size(g, t, life->buffer_id));
}

// The node has been computed: its sources lose a reader. An OUTPUT view keeps its owner.
static gcuda_status gcudai_gallocr_release(gcuda_gallocr_t g, const struct gcuda_tensor * src) {
    struct gcudai_life * life = gcudai_life_of(g, src);
    if (--life->n_children > 0 || life->n_views > 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    if (src->view_src == NULL) {
        return gcudai_gallocr_drop(g, src);
    }
    struct gcudai_life * owner = gcudai_life_of(g, src->view_src);
    if (src->op == GCUDA_OP_NONE || (src->flags & GCUDA_TENSOR_FLAG_OUTPUT)) {
        return GCUDA_STATUS_SUCCESS;
    }
    owner->n_views--;
    return owner->n_views == 0 && owner->n_children == 0 ? gcudai_gallocr_drop(g, src->view_src) : GCUDA_STATUS_SUCCESS;
}

static int gcudai_buffer_id(const int * ids, int i) { return ids ? ids[i] : 0; }

static gcuda_status gcudai_gallocr_count(gcuda_gallocr_t g, const struct gcuda_cgraph * graph, const int * node_ids) {
    for (int i = 0; i < graph->n_nodes; ++i) {
        const struct gcuda_tensor * t = graph->nodes[i];
        const int id = gcudai_buffer_id(node_ids, i);
        if (t->view_src != NULL && t->op != GCUDA_OP_NONE) { // NONE: a mark for dependency, reads nothing
            gcudai_life_of(g, t->view_src)->n_views++;
        }
        if (t->flags & GCUDA_TENSOR_FLAG_INPUT) {
            GCUDAI_TRY(gcudai_gallocr_take(g, t, id));
        }
        for (int k = 0; k < GCUDA_MAX_SRC; ++k) {
            if (t->src[k] != NULL) {
                gcudai_life_of(g, t->src[k])->n_children++;
                if (t->src[k]->flags & GCUDA_TENSOR_FLAG_INPUT) {
                    GCUDAI_TRY(gcudai_gallocr_take(g, t->src[k], id));
                }
            }
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

static struct gcudai_place gcudai_gallocr_place(gcuda_gallocr_t g, const struct gcuda_tensor * t) {
    struct gcudai_place p = { -1, 0, 0 };
    if (t != NULL && gcudai_is_ours(t)) {
        const struct gcudai_life * life = gcudai_life_of(g, t);
        p.buffer_id = life->buffer_id;
        p.offset = life->offset;
        p.size = gcudai_gallocr_size(g, t, life->buffer_id);
    }
    return p;
}

static gcuda_status gcudai_gallocr_walk(gcuda_gallocr_t g, const struct gcuda_cgraph * graph, const int * node_ids) {
    for (int i = 0; i < graph->n_nodes; ++i) {
        const struct gcuda_tensor * t = graph->nodes[i];
        const int id = gcudai_buffer_id(node_ids, i);
        for (int k = 0; k < GCUDA_MAX_SRC; ++k) {
            if (t->src[k] != NULL) {
                GCUDAI_TRY(gcudai_gallocr_take(g, t->src[k], id));
            }
        }
        GCUDAI_TRY(gcudai_gallocr_take(g, t, id));
        for (int k = 0; k < GCUDA_MAX_SRC; ++k) {
            if (t->src[k] != NULL) {
                GCUDAI_TRY(gcudai_gallocr_release(g, t->src[k]));
            }
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

// Zeroed array of at least n elements, kept when it is large enough.
static gcuda_status gcudai_grow(void ** array, size_t * cap, size_t n, size_t size) {
    if (n > *cap) {
        void * more = gcudai_calloc(n, size);
        if (more == NULL) {
            return GCUDA_STATUS_ALLOC_FAILED;
        }
        gcudai_free(*array);
        *array = more;
        *cap = n;
    } else if (*array != NULL) { // always, when n > 0; gcc 14 cannot know
        memset(*array, 0, n * size);
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_gallocr_check_ids(gcuda_gallocr_t g, const int * ids, int n) {
    for (int i = 0; ids != NULL && i < n; ++i) {
        if (ids[i] < 0 || ids[i] >= g->n_bufs) {
            return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "gallocr: buffer id %d of node or leaf %d, there are %d", ids[i], i, g->n_bufs);
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

// Measures: lifetimes, then offsets, then the plan from them.
static gcuda_status gcudai_gallocr_plan(gcuda_gallocr_t g, const struct gcuda_cgraph * graph, const int * node_ids, const int * leaf_ids) {
    void * array = NULL;
    g->has_plan = false;
    GCUDAI_TRY(gcudai_gallocr_check_ids(g, node_ids, graph->n_nodes));
    GCUDAI_TRY(gcudai_gallocr_check_ids(g, leaf_ids, graph->n_leafs));
    for (int i = 0; i < graph->n_nodes + graph->n_leafs; ++i) {
        GCUDAI_TRY(gcudai_check_tensor(i < graph->n_nodes ? graph->nodes[i] : graph->leafs[i - graph->n_nodes]));
    }
    GCUDAI_TRY(gcudai_gallocr_index(g, graph));
    array = g->lives;
    GCUDAI_TRY(gcudai_grow(&array, &g->n_lives, g->map.n, sizeof(*g->lives)));
    g->lives = (struct gcudai_life *) array;
    array = g->nodes;
    GCUDAI_TRY(gcudai_grow(&array, &g->cap_nodes, (size_t) graph->n_nodes, sizeof(*g->nodes)));
    g->nodes = (struct gcudai_node_places *) array;
    array = g->leafs;
    GCUDAI_TRY(gcudai_grow(&array, &g->cap_leafs, (size_t) graph->n_leafs, sizeof(*g->leafs)));
    g->leafs = (struct gcudai_place *) array;
    for (int i = 0; i < g->n_bufs; ++i) {
        GCUDAI_TRY(gcudai_dyn_reset(&g->dyns[i], gcuda_backend_buft_get_alignment(g->bufts[i])));
    }
    for (int i = 0; i < graph->n_leafs; ++i) {
        GCUDAI_TRY(gcudai_gallocr_take(g, graph->leafs[i], gcudai_buffer_id(leaf_ids, i)));
    }
    GCUDAI_TRY(gcudai_gallocr_count(g, graph, node_ids));
    GCUDAI_TRY(gcudai_gallocr_walk(g, graph, node_ids));
    for (int i = 0; i < graph->n_nodes; ++i) {
        g->nodes[i].node = gcudai_gallocr_place(g, graph->nodes[i]);
        for (int k = 0; k < GCUDA_MAX_SRC; ++k) {
            g->nodes[i].src[k] = gcudai_gallocr_place(g, graph->nodes[i]->src[k]);
        }
    }
    for (int i = 0; i < graph->n_leafs; ++i) {
        g->leafs[i] = gcudai_gallocr_place(g, graph->leafs[i]);
    }
    g->n_nodes = graph->n_nodes;
    g->n_leafs = graph->n_leafs;
    g->structure = gcudai_gallocr_structure(&g->map, graph);
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status gcuda_gallocr_reserve_n_size(gcuda_gallocr_t galloc, struct gcuda_cgraph * graph, const int * node_buffer_ids, const int * leaf_buffer_ids, size_t * sizes) {
    if (galloc == NULL || graph == NULL || sizes == NULL) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "gallocr_reserve_n_size: allocator, graph or result is NULL");
    }
    GCUDAI_TRY(gcudai_gallocr_plan(galloc, graph, node_buffer_ids, leaf_buffer_ids));
    for (int i = 0; i < galloc->n_bufs; ++i) {
        sizes[i] = galloc->owner[i] == i ? galloc->dyns[i].max_size : 0;
    }
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status gcuda_gallocr_reserve_n(gcuda_gallocr_t galloc, struct gcuda_cgraph * graph, const int * node_buffer_ids, const int * leaf_buffer_ids) {
    if (galloc == NULL || graph == NULL) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "gallocr_reserve: allocator or graph is NULL");
    }
    GCUDAI_TRY(gcudai_gallocr_plan(galloc, graph, node_buffer_ids, leaf_buffer_ids));
    for (int i = 0; i < galloc->n_bufs; ++i) {
        const size_t need = galloc->dyns[i].max_size;
        if (galloc->owner[i] != i || (galloc->buffers[i] != NULL && need <= gcuda_backend_buffer_get_size(galloc->buffers[i]))) {
            continue;
        }
        gcuda_backend_buffer_free(galloc->buffers[i]); // first, so that both need not fit
        galloc->buffers[i] = gcuda_backend_buft_alloc_buffer(galloc->bufts[i], need);
        if (galloc->buffers[i] == NULL) {
            return gcudai_fail(GCUDA_STATUS_ALLOC_FAILED, "gallocr_reserve: a buffer of %llu bytes (%s): %.600s", (unsigned long long) need,
                               gcuda_backend_buft_name(galloc->bufts[i]), gcudai_message);
        }
        gcuda_backend_buffer_set_usage(galloc->buffers[i], GCUDA_BACKEND_BUFFER_USAGE_COMPUTE);
    }
    galloc->has_plan = true;
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status gcuda_gallocr_reserve(gcuda_gallocr_t galloc, struct gcuda_cgraph * graph) { return gcuda_gallocr_reserve_n(galloc, graph, NULL, NULL); }

static bool gcudai_gallocr_fits(gcuda_gallocr_t g, const struct gcuda_tensor * t, const struct gcudai_place * p) {
    return t == NULL || !gcudai_is_ours(t) || (p->buffer_id >= 0 && gcudai_gallocr_size(g, t, p->buffer_id) <= p->size);
}

static gcuda_status gcudai_gallocr_plan_fits(gcuda_gallocr_t g, const struct gcuda_cgraph * graph, bool * is_ok) {
    *is_ok = g->has_plan && g->n_nodes == graph->n_nodes && g->n_leafs == graph->n_leafs;
    if (*is_ok) {
        GCUDAI_TRY(gcudai_gallocr_index(g, graph));
        *is_ok = gcudai_gallocr_structure(&g->map, graph) == g->structure;
    }
    for (int i = 0; i < graph->n_leafs && *is_ok; ++i) {
        *is_ok = gcudai_gallocr_fits(g, graph->leafs[i], &g->leafs[i]);
    }
    for (int i = 0; i < graph->n_nodes && *is_ok; ++i) {
        *is_ok = gcudai_gallocr_fits(g, graph->nodes[i], &g->nodes[i].node);
        for (int k = 0; k < GCUDA_MAX_SRC && *is_ok; ++k) {
            *is_ok = gcudai_gallocr_fits(g, graph->nodes[i]->src[k], &g->nodes[i].src[k]);
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_gallocr_assign(gcuda_gallocr_t g, struct gcuda_tensor * t, const struct gcudai_place * p) {
    if (t == NULL) {
        return GCUDA_STATUS_SUCCESS;
    }
    if (t->view_src != NULL) {
        const bool is_owner_placed = t->view_src->buffer != NULL || t->view_src->data != NULL;
        return t->buffer == NULL && is_owner_placed ? gcuda_backend_view_init(t) : GCUDA_STATUS_SUCCESS;
    }
    if (!gcudai_is_ours(t)) {
        return GCUDA_STATUS_SUCCESS;
    }
    gcuda_backend_buffer_t buffer = g->buffers[g->owner[p->buffer_id]];
    char * base = (char *) gcuda_backend_buffer_get_base(buffer);
    return gcuda_backend_tensor_alloc(buffer, t, base ? base + p->offset : NULL);
}

gcuda_status gcuda_gallocr_alloc_graph(gcuda_gallocr_t galloc, struct gcuda_cgraph * graph) {
    bool is_ok = false;
    if (galloc == NULL || graph == NULL) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "gallocr_alloc_graph: allocator or graph is NULL");
    }
    GCUDAI_TRY(gcudai_gallocr_plan_fits(galloc, graph, &is_ok));
    if (!is_ok) {
        if (galloc->n_bufs > 1) {
            return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "gallocr_alloc_graph: the graph differs from the reserved one; with %d buffers call reserve_n first", galloc->n_bufs);
        }
        GCUDAI_TRY(gcuda_gallocr_reserve(galloc, graph));
    }
    for (int i = 0; i < galloc->n_bufs; ++i) {
        GCUDAI_TRY(gcuda_backend_buffer_reset(galloc->buffers[i]));
    }
    for (int i = 0; i < graph->n_leafs; ++i) {
        GCUDAI_TRY(gcudai_gallocr_assign(galloc, graph->leafs[i], &galloc->leafs[i]));
    }
    for (int i = 0; i < graph->n_nodes; ++i) {
        for (int k = 0; k < GCUDA_MAX_SRC; ++k) {
            GCUDAI_TRY(gcudai_gallocr_assign(galloc, graph->nodes[i]->src[k], &galloc->nodes[i].src[k]));
        }
        GCUDAI_TRY(gcudai_gallocr_assign(galloc, graph->nodes[i], &galloc->nodes[i].node));
    }
    return GCUDA_STATUS_SUCCESS;
}

size_t gcuda_gallocr_get_buffer_size(gcuda_gallocr_t galloc, int buffer_id) {
    if (galloc == NULL || buffer_id < 0 || buffer_id >= galloc->n_bufs) {
        gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "gallocr_get_buffer_size: allocator is NULL, or there is no buffer %d", buffer_id);
        return 0;
    }
    return gcuda_backend_buffer_get_size(galloc->buffers[buffer_id]);
}

// ---- all tensors of a context ----

struct gcudai_buffer_list {
    gcuda_backend_buffer_t * items;
    size_t n, cap;
};

static gcuda_status gcudai_buffer_list_add(struct gcudai_buffer_list * list, gcuda_backend_buffer_type_t buft, size_t size) {
    if (list->n == list->cap) {
        const size_t cap = list->cap ? list->cap * 2 : 4;
        gcuda_backend_buffer_t * items = (gcuda_backend_buffer_t *) gcudai_calloc(cap, sizeof(*items));
        if (items == NULL) {
            return GCUDA_STATUS_ALLOC_FAILED;
        }
        if (list->n > 0) {
            memcpy(items, list->items, list->n * sizeof(*items));
        }
        gcudai_free(list->items);
        list->items = items;
        list->cap = cap;
    }
    list->items[list->n] = gcuda_backend_buft_alloc_buffer(buft, size);
    if (list->items[list->n] == NULL) {
        return GCUDA_STATUS_ALLOC_FAILED;
    }
    list->n++;
    return GCUDA_STATUS_SUCCESS;
}

// Places the tensors [first, end) of the context that need memory into one new buffer.
static gcuda_status gcudai_place_range(struct gcuda_context * ctx, struct gcudai_buffer_list * list, gcuda_backend_buffer_type_t buft, struct gcuda_tensor * first, const struct gcuda_tensor * end, size_t size) {
    GCUDAI_TRY(gcudai_buffer_list_add(list, buft, size));
    struct gcuda_tallocr talloc = gcuda_tallocr_new(list->items[list->n - 1]);
    for (struct gcuda_tensor * t = first; t != end; t = gcuda_get_next_tensor(ctx, t)) {
        if (gcudai_is_ours(t)) {
            GCUDAI_TRY(gcuda_tallocr_alloc(&talloc, t));
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_place_context(struct gcuda_context * ctx, struct gcudai_buffer_list * list, gcuda_backend_buffer_type_t buft) {
    const size_t align = gcuda_backend_buft_get_alignment(buft), max = gcuda_backend_buft_get_max_size(buft);
    struct gcuda_tensor * first = gcuda_get_first_tensor(ctx);
    size_t sum = 0;
    for (struct gcuda_tensor * t = first; t != NULL; t = gcuda_get_next_tensor(ctx, t)) {
        if (!gcudai_is_ours(t)) {
            continue;
        }
        GCUDAI_TRY(gcudai_check_tensor(t));
        const size_t size = gcudai_pad(gcuda_backend_buft_get_alloc_size(buft, t), align);
        if (size > max || size > (size_t) PTRDIFF_MAX) {
            return gcudai_fail(GCUDA_STATUS_ALLOC_FAILED, "alloc_ctx_tensors: '%s' of %llu bytes is larger than a buffer of %s may be (%llu)", t->name,
                               (unsigned long long) size, gcuda_backend_buft_name(buft), (unsigned long long) max);
        }
        if (sum > max - size || sum > (size_t) PTRDIFF_MAX - size) {
            GCUDAI_TRY(gcudai_place_range(ctx, list, buft, first, t, sum));
            first = t;
            sum = 0;
        }
        sum += size;
    }
    GCUDAI_TRY(gcudai_place_range(ctx, list, buft, first, NULL, sum));
    for (struct gcuda_tensor * t = gcuda_get_first_tensor(ctx); t != NULL; t = gcuda_get_next_tensor(ctx, t)) {
        if (t->view_src != NULL && t->buffer == NULL && (t->view_src->buffer != NULL || t->view_src->data != NULL)) {
            GCUDAI_TRY(gcuda_backend_view_init(t));
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

// Takes memory away again from every tensor that lies in one of the buffers.
static void gcudai_unplace_context(struct gcuda_context * ctx, const struct gcudai_buffer_list * list) {
    for (struct gcuda_tensor * t = gcuda_get_first_tensor(ctx); t != NULL; t = gcuda_get_next_tensor(ctx, t)) {
        for (size_t i = 0; i < list->n; ++i) {
            if (t->buffer != NULL && t->buffer == list->items[i]) {
                t->buffer = NULL;
                t->data = NULL;
            }
        }
    }
}

gcuda_backend_buffer_t gcuda_backend_alloc_ctx_tensors_from_buft(struct gcuda_context * ctx, gcuda_backend_buffer_type_t buft) {
    struct gcudai_buffer_list list;
    gcuda_backend_buffer_t result = NULL;
    GCUDAI_ZERO(list);
    if (ctx == NULL || buft == NULL || !ctx->no_alloc) {
        gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "alloc_ctx_tensors: context or buffer type is NULL, or the context was made without no_alloc");
        return NULL;
    }
    const gcuda_status st = gcudai_place_context(ctx, &list, buft);
    if (st == GCUDA_STATUS_SUCCESS && list.n == 1) {
        result = list.items[0];
    } else if (st == GCUDA_STATUS_SUCCESS) {
        result = gcuda_backend_multi_buffer_alloc_buffer(list.items, list.n);
    }
    if (result == NULL) {
        gcudai_unplace_context(ctx, &list);
        for (size_t i = 0; i < list.n && st != GCUDA_STATUS_SUCCESS; ++i) { // multi_buffer has freed them itself
            gcuda_backend_buffer_free(list.items[i]);
        }
    }
    gcudai_free(list.items);
    return result;
}

gcuda_backend_buffer_t gcuda_backend_alloc_ctx_tensors(struct gcuda_context * ctx, gcuda_backend_t backend) {
    return gcuda_backend_alloc_ctx_tensors_from_buft(ctx, gcuda_backend_get_default_buffer_type(backend));
}

// =====================================================================================================
// >>impl-backend   buffers, devices, backends, registry
// =====================================================================================================

// ---- buffer types ----

const char * gcuda_backend_buft_name(gcuda_backend_buffer_type_t buft) { return buft ? buft->iface.get_name(buft) : ""; }

gcuda_backend_buffer_t gcuda_backend_buft_alloc_buffer(gcuda_backend_buffer_type_t buft, size_t size) {
    gcuda_backend_buffer_t buffer = NULL;
    if (buft == NULL) {
        gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "alloc_buffer: buffer type is NULL");
        return NULL;
    }
    return buft->iface.alloc_buffer(buft, size, &buffer) == GCUDA_STATUS_SUCCESS ? buffer : NULL;
}

size_t gcuda_backend_buft_get_alignment(gcuda_backend_buffer_type_t buft) { return buft ? buft->iface.get_alignment(buft) : 1; }
size_t gcuda_backend_buft_get_max_size(gcuda_backend_buffer_type_t buft) { return buft && buft->iface.get_max_size ? buft->iface.get_max_size(buft) : SIZE_MAX; }

size_t gcuda_backend_buft_get_alloc_size(gcuda_backend_buffer_type_t buft, const struct gcuda_tensor * tensor) {
    const size_t n_bytes = gcuda_nbytes(tensor);
    const size_t size = buft && buft->iface.get_alloc_size ? buft->iface.get_alloc_size(buft, tensor) : n_bytes;
    return GCUDAI_MAX(size, n_bytes);
}

bool gcuda_backend_buft_is_host(gcuda_backend_buffer_type_t buft) { return buft && buft->iface.is_host && buft->iface.is_host(buft); }
gcuda_backend_dev_t gcuda_backend_buft_get_device(gcuda_backend_buffer_type_t buft) { return buft ? buft->device : NULL; }

// ---- buffers ----

gcuda_backend_buffer_t gcuda_backend_buffer_init(gcuda_backend_buffer_type_t buft, const struct gcuda_backend_buffer_i * iface, void * context, size_t size) {
    gcuda_backend_buffer_t buffer = (gcuda_backend_buffer_t) gcudai_calloc(1, sizeof(*buffer));
    if (buffer != NULL) {
        buffer->iface = *iface;
        buffer->buft = buft;
        buffer->context = context;
        buffer->size = size;
    }
    return buffer;
}

void gcuda_backend_buffer_free(gcuda_backend_buffer_t buffer) {
    if (buffer != NULL) {
        if (buffer->iface.free_buffer) {
            buffer->iface.free_buffer(buffer);
        }
        gcudai_free(buffer);
    }
}

const char * gcuda_backend_buffer_name(gcuda_backend_buffer_t buffer) { return buffer ? gcuda_backend_buft_name(buffer->buft) : ""; }
void * gcuda_backend_buffer_get_base(gcuda_backend_buffer_t buffer) { return buffer && buffer->size > 0 && buffer->iface.get_base ? buffer->iface.get_base(buffer) : NULL; }
size_t gcuda_backend_buffer_get_size(gcuda_backend_buffer_t buffer) { return buffer ? buffer->size : 0; }
gcuda_backend_buffer_type_t gcuda_backend_buffer_get_type(gcuda_backend_buffer_t buffer) { return buffer ? buffer->buft : NULL; }
size_t gcuda_backend_buffer_get_alignment(gcuda_backend_buffer_t buffer) { return gcuda_backend_buft_get_alignment(gcuda_backend_buffer_get_type(buffer)); }
size_t gcuda_backend_buffer_get_max_size(gcuda_backend_buffer_t buffer) { return gcuda_backend_buft_get_max_size(gcuda_backend_buffer_get_type(buffer)); }
size_t gcuda_backend_buffer_get_alloc_size(gcuda_backend_buffer_t buffer, const struct gcuda_tensor * tensor) { return gcuda_backend_buft_get_alloc_size(gcuda_backend_buffer_get_type(buffer), tensor); }
bool gcuda_backend_buffer_is_host(gcuda_backend_buffer_t buffer) { return gcuda_backend_buft_is_host(gcuda_backend_buffer_get_type(buffer)); }
enum gcuda_backend_buffer_usage gcuda_backend_buffer_get_usage(gcuda_backend_buffer_t buffer) { return buffer ? buffer->usage : GCUDA_BACKEND_BUFFER_USAGE_ANY; }

gcuda_status gcuda_backend_buffer_init_tensor(gcuda_backend_buffer_t buffer, struct gcuda_tensor * tensor) {
    return buffer && buffer->iface.init_tensor ? buffer->iface.init_tensor(buffer, tensor) : GCUDA_STATUS_SUCCESS;
}

gcuda_status gcuda_backend_buffer_clear(gcuda_backend_buffer_t buffer, uint8_t value) {
    return buffer && buffer->size > 0 ? buffer->iface.clear(buffer, value) : GCUDA_STATUS_SUCCESS;
}

gcuda_status gcuda_backend_buffer_reset(gcuda_backend_buffer_t buffer) {
    return buffer && buffer->iface.reset ? buffer->iface.reset(buffer) : GCUDA_STATUS_SUCCESS;
}

// ---- several buffers as one ----

struct gcudai_multi_buffer {
    size_t n;
    gcuda_backend_buffer_t * buffers;
};

static void gcudai_multi_free(gcuda_backend_buffer_t buffer) {
    struct gcudai_multi_buffer * m = (struct gcudai_multi_buffer *) buffer->context;
    for (size_t i = 0; i < m->n; ++i) {
        gcuda_backend_buffer_free(m->buffers[i]);
    }
    gcudai_free(m->buffers);
    gcudai_free(m);
}

static gcuda_status gcudai_multi_clear(gcuda_backend_buffer_t buffer, uint8_t value) {
    struct gcudai_multi_buffer * m = (struct gcudai_multi_buffer *) buffer->context;
    for (size_t i = 0; i < m->n; ++i) {
        GCUDAI_TRY(gcuda_backend_buffer_clear(m->buffers[i], value));
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_multi_reset(gcuda_backend_buffer_t buffer) {
    struct gcudai_multi_buffer * m = (struct gcudai_multi_buffer *) buffer->context;
    for (size_t i = 0; i < m->n; ++i) {
        GCUDAI_TRY(gcuda_backend_buffer_reset(m->buffers[i]));
    }
    return GCUDA_STATUS_SUCCESS;
}

bool gcuda_backend_buffer_is_multi_buffer(gcuda_backend_buffer_t buffer) { return buffer != NULL && buffer->iface.free_buffer == gcudai_multi_free; }

gcuda_backend_buffer_t gcuda_backend_multi_buffer_alloc_buffer(gcuda_backend_buffer_t * buffers, size_t n_buffers) {
    struct gcuda_backend_buffer_i iface;
    gcuda_backend_buffer_t whole = NULL;
    size_t size = 0;
    GCUDAI_ZERO(iface);
    iface.free_buffer = gcudai_multi_free;
    iface.clear = gcudai_multi_clear;
    iface.reset = gcudai_multi_reset;
    struct gcudai_multi_buffer * m = n_buffers > 0 ? (struct gcudai_multi_buffer *) gcudai_calloc(1, sizeof(*m)) : NULL;
    gcuda_backend_buffer_t * list = m ? (gcuda_backend_buffer_t *) gcudai_calloc(n_buffers, sizeof(*list)) : NULL;
    for (size_t i = 0; i < n_buffers && list != NULL; ++i) {
        list[i] = buffers[i];
        size += gcuda_backend_buffer_get_size(buffers[i]);
    }
    if (list != NULL) {
        m->n = n_buffers;
        m->buffers = list;
        whole = gcuda_backend_buffer_init(gcuda_backend_buffer_get_type(buffers[0]), &iface, m, size);
    }
    if (whole == NULL) {
        for (size_t i = 0; i < n_buffers; ++i) {
            gcuda_backend_buffer_free(buffers[i]);
        }
        gcudai_free(list);
        gcudai_free(m);
        if (n_buffers == 0) {
            gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "multi_buffer: no buffers");
        }
    }
    return whole;
}

void gcuda_backend_buffer_set_usage(gcuda_backend_buffer_t buffer, enum gcuda_backend_buffer_usage usage) {
    if (buffer == NULL) {
        return;
    }
    buffer->usage = usage;
    if (gcuda_backend_buffer_is_multi_buffer(buffer)) {
        struct gcudai_multi_buffer * m = (struct gcudai_multi_buffer *) buffer->context;
        for (size_t i = 0; i < m->n; ++i) {
            gcuda_backend_buffer_set_usage(m->buffers[i], usage);
        }
    }
}

// ---- tensors in buffers ----

// Buffer of the tensor's owner.
static gcuda_backend_buffer_t gcudai_buffer_of(const struct gcuda_tensor * t) { return t->view_src ? t->view_src->buffer : t->buffer; }

// For [offset, offset + size) of a tensor that must have memory. size 0 needs nothing.
static gcuda_status gcudai_check_range(const struct gcuda_tensor * t, const void * data, size_t offset, size_t size, const char * what) {
    size_t end = 0;
    if (t == NULL || (size > 0 && data == NULL)) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "%s: tensor or data is NULL", what);
    }
    if (!gcudai_add_size(offset, size, &end) || end > gcuda_nbytes(t)) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "%s: %llu bytes at offset %llu are outside '%s' of %llu bytes", what,
                           (unsigned long long) size, (unsigned long long) offset, t->name, (unsigned long long) gcuda_nbytes(t));
    }
    if (size > 0 && t->data == NULL) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "%s: '%s' has no memory yet", what, t->name);
    }
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status gcuda_backend_tensor_set(struct gcuda_tensor * tensor, const void * data, size_t offset, size_t size) {
    GCUDAI_TRY(gcudai_check_range(tensor, data, offset, size, "tensor_set"));
    const gcuda_backend_buffer_t buffer = gcudai_buffer_of(tensor);
    if (size == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    if (buffer == NULL) { // data of a context
        memcpy((char *) tensor->data + offset, data, size);
        return GCUDA_STATUS_SUCCESS;
    }
    return buffer->iface.set_tensor(buffer, tensor, data, offset, size);
}

gcuda_status gcuda_backend_tensor_get(const struct gcuda_tensor * tensor, void * data, size_t offset, size_t size) {
    GCUDAI_TRY(gcudai_check_range(tensor, data, offset, size, "tensor_get"));
    const gcuda_backend_buffer_t buffer = gcudai_buffer_of(tensor);
    if (size == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    if (buffer == NULL) {
        memcpy(data, (const char *) tensor->data + offset, size);
        return GCUDA_STATUS_SUCCESS;
    }
    return buffer->iface.get_tensor(buffer, tensor, data, offset, size);
}

gcuda_status gcuda_backend_tensor_memset(struct gcuda_tensor * tensor, uint8_t value, size_t offset, size_t size) {
    GCUDAI_TRY(gcudai_check_range(tensor, tensor, offset, size, "tensor_memset"));
    const gcuda_backend_buffer_t buffer = gcudai_buffer_of(tensor);
    if (size == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    if (buffer == NULL) {
        memset((char *) tensor->data + offset, value, size);
        return GCUDA_STATUS_SUCCESS;
    }
    if (buffer->iface.memset_tensor == NULL) {
        return gcudai_fail(GCUDA_STATUS_UNSUPPORTED, "tensor_memset: buffers of type %s cannot", gcuda_backend_buffer_name(buffer));
    }
    return buffer->iface.memset_tensor(buffer, tensor, value, offset, size);
}

static gcuda_status gcudai_copy_staged(const struct gcuda_tensor * src, struct gcuda_tensor * dst, size_t size) {
    void * stage = gcudai_alloc(size);
    if (stage == NULL) {
        return GCUDA_STATUS_ALLOC_FAILED;
    }
    gcuda_status st = gcuda_backend_tensor_get(src, stage, 0, size);
    if (st == GCUDA_STATUS_SUCCESS) {
        st = gcuda_backend_tensor_set(dst, stage, 0, size);
    }
    gcudai_free(stage);
    return st;
}

static gcuda_status gcudai_want_same_layout(const struct gcuda_tensor * src, const struct gcuda_tensor * dst, const char * what) {
    if (src == NULL || dst == NULL || !gcudai_same_layout(src, dst)) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "%s: '%s' and '%s' are NULL or differ in type, shape or strides", what, gcuda_get_name(src), gcuda_get_name(dst));
    }
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status gcuda_backend_tensor_copy(const struct gcuda_tensor * src, struct gcuda_tensor * dst) {
    GCUDAI_TRY(gcudai_want_same_layout(src, dst, "tensor_copy"));
    const size_t size = gcuda_nbytes(src);
    if (src == dst || size == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    if (gcudai_in_host_memory(src)) {
        return gcuda_backend_tensor_set(dst, src->data, 0, size);
    }
    if (gcudai_in_host_memory(dst)) {
        return gcuda_backend_tensor_get(src, dst->data, 0, size);
    }
    const gcuda_backend_buffer_t buffer = gcudai_buffer_of(dst);
    gcuda_status st = GCUDA_STATUS_UNSUPPORTED;
    if (buffer != NULL && buffer->iface.cpy_tensor != NULL && src->data != NULL && dst->data != NULL) {
        st = buffer->iface.cpy_tensor(buffer, src, dst);
    }
    return st == GCUDA_STATUS_UNSUPPORTED ? gcudai_copy_staged(src, dst, size) : st;
}

gcuda_status gcuda_backend_tensor_set_async(gcuda_backend_t backend, struct gcuda_tensor * tensor, const void * data, size_t offset, size_t size) {
    GCUDAI_TRY(gcudai_check_range(tensor, data, offset, size, "tensor_set_async"));
    if (backend == NULL || backend->iface.set_tensor_async == NULL || size == 0) {
        GCUDAI_TRY(gcuda_backend_synchronize(backend)); // queued work comes first
        return gcuda_backend_tensor_set(tensor, data, offset, size);
    }
    return backend->iface.set_tensor_async(backend, tensor, data, offset, size);
}

gcuda_status gcuda_backend_tensor_get_async(gcuda_backend_t backend, const struct gcuda_tensor * tensor, void * data, size_t offset, size_t size) {
    GCUDAI_TRY(gcudai_check_range(tensor, data, offset, size, "tensor_get_async"));
    if (backend == NULL || backend->iface.get_tensor_async == NULL || size == 0) {
        GCUDAI_TRY(gcuda_backend_synchronize(backend));
        return gcuda_backend_tensor_get(tensor, data, offset, size);
    }
    return backend->iface.get_tensor_async(backend, tensor, data, offset, size);
}

gcuda_status gcuda_backend_tensor_copy_async(gcuda_backend_t backend_src, gcuda_backend_t backend_dst, const struct gcuda_tensor * src, struct gcuda_tensor * dst) {
    GCUDAI_TRY(gcudai_want_same_layout(src, dst, "tensor_copy_async"));
    if (src == dst) {
        return GCUDA_STATUS_SUCCESS;
    }
    if (backend_dst != NULL && backend_dst->iface.cpy_tensor_async != NULL) {
        const gcuda_status st = backend_dst->iface.cpy_tensor_async(backend_src, backend_dst, src, dst);
        if (st != GCUDA_STATUS_UNSUPPORTED) {
            return st;
        }
    }
    GCUDAI_TRY(gcuda_backend_synchronize(backend_src));
    GCUDAI_TRY(gcuda_backend_synchronize(backend_dst));
    return gcuda_backend_tensor_copy(src, dst);
}

gcuda_status gcuda_backend_tensor_alloc(gcuda_backend_buffer_t buffer, struct gcuda_tensor * tensor, void * addr) {
    if (buffer == NULL || tensor == NULL || tensor->buffer != NULL || tensor->data != NULL || tensor->view_src != NULL) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "tensor_alloc: '%s' is NULL, a view, or has memory already", gcuda_get_name(tensor));
    }
    GCUDAI_TRY(gcudai_check_tensor(tensor));
    const size_t need = gcuda_backend_buffer_get_alloc_size(buffer, tensor), size = gcuda_backend_buffer_get_size(buffer);
    const uintptr_t base = (uintptr_t) gcuda_backend_buffer_get_base(buffer), at = (uintptr_t) addr;
    if (need > 0 && (at < base || at - base > size || need > size - (size_t) (at - base))) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "tensor_alloc: '%s' of %llu bytes does not lie inside the buffer of %llu bytes", tensor->name,
                           (unsigned long long) need, (unsigned long long) size);
    }
    tensor->buffer = buffer;
    tensor->data = addr;
    const gcuda_status st = gcuda_backend_buffer_init_tensor(buffer, tensor);
    if (st != GCUDA_STATUS_SUCCESS) {
        tensor->buffer = NULL;
        tensor->data = NULL;
    }
    return st;
}

gcuda_status gcuda_backend_view_init(struct gcuda_tensor * tensor) {
    const struct gcuda_tensor * owner = tensor ? tensor->view_src : NULL;
    if (owner == NULL || tensor->buffer != NULL || (owner->data == NULL && owner->buffer == NULL)) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "view_init: '%s' is NULL, no view or placed already, or its owner has no memory", gcuda_get_name(tensor));
    }
    GCUDAI_TRY(gcudai_check_tensor(tensor));
    void * const before = tensor->data;
    tensor->buffer = owner->buffer;
    tensor->data = owner->data ? (char *) owner->data + tensor->view_offs : NULL;
    const gcuda_status st = gcuda_backend_buffer_init_tensor(tensor->buffer, tensor);
    if (st != GCUDA_STATUS_SUCCESS) {
        tensor->buffer = NULL;
        tensor->data = before;
    }
    return st;
}

// ---- backends ----

const uint8_t * gcuda_backend_guid(gcuda_backend_t backend) { return backend ? backend->guid : NULL; }
const char * gcuda_backend_name(gcuda_backend_t backend) { return backend ? backend->iface.get_name(backend) : ""; }

void gcuda_backend_free(gcuda_backend_t backend) {
    if (backend != NULL) {
        backend->iface.free(backend);
    }
}

gcuda_backend_dev_t gcuda_backend_get_device(gcuda_backend_t backend) { return backend ? backend->device : NULL; }
gcuda_backend_buffer_type_t gcuda_backend_get_default_buffer_type(gcuda_backend_t backend) { return gcuda_backend_dev_buffer_type(gcuda_backend_get_device(backend)); }
gcuda_backend_buffer_t gcuda_backend_alloc_buffer(gcuda_backend_t backend, size_t size) { return gcuda_backend_buft_alloc_buffer(gcuda_backend_get_default_buffer_type(backend), size); }
size_t gcuda_backend_get_alignment(gcuda_backend_t backend) { return gcuda_backend_buft_get_alignment(gcuda_backend_get_default_buffer_type(backend)); }
size_t gcuda_backend_get_max_size(gcuda_backend_t backend) { return gcuda_backend_buft_get_max_size(gcuda_backend_get_default_buffer_type(backend)); }
gcuda_status gcuda_backend_synchronize(gcuda_backend_t backend) { return backend && backend->iface.synchronize ? backend->iface.synchronize(backend) : GCUDA_STATUS_SUCCESS; }

gcuda_status gcuda_backend_graph_compute_async(gcuda_backend_t backend, struct gcuda_cgraph * graph) {
    if (backend == NULL || graph == NULL) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "graph_compute: backend or graph is NULL");
    }
    return backend->iface.graph_compute(backend, graph);
}

gcuda_status gcuda_backend_graph_compute(gcuda_backend_t backend, struct gcuda_cgraph * graph) {
    const gcuda_status st = gcuda_backend_graph_compute_async(backend, graph);
    const gcuda_status end = gcuda_backend_synchronize(backend);
    return st != GCUDA_STATUS_SUCCESS ? st : end;
}

gcuda_backend_graph_plan_t gcuda_backend_graph_plan_create(gcuda_backend_t backend, struct gcuda_cgraph * graph) {
    gcuda_backend_graph_plan_t plan = NULL;
    if (backend == NULL || graph == NULL || backend->iface.graph_plan_create == NULL) {
        gcudai_fail(backend && graph ? GCUDA_STATUS_UNSUPPORTED : GCUDA_STATUS_INVALID_ARGUMENT, "graph_plan_create: backend or graph is NULL, or the backend has no plans");
        return NULL;
    }
    return backend->iface.graph_plan_create(backend, graph, &plan) == GCUDA_STATUS_SUCCESS ? plan : NULL;
}

void gcuda_backend_graph_plan_free(gcuda_backend_t backend, gcuda_backend_graph_plan_t plan) {
    if (backend != NULL && plan != NULL && backend->iface.graph_plan_free != NULL) {
        backend->iface.graph_plan_free(backend, plan);
    }
}

gcuda_status gcuda_backend_graph_plan_compute(gcuda_backend_t backend, gcuda_backend_graph_plan_t plan) {
    if (backend == NULL || plan == NULL || backend->iface.graph_plan_compute == NULL) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "graph_plan_compute: backend or plan is NULL, or the backend has no plans");
    }
    return backend->iface.graph_plan_compute(backend, plan);
}

bool gcuda_backend_supports_op(gcuda_backend_t backend, const struct gcuda_tensor * op) { return gcuda_backend_dev_supports_op(gcuda_backend_get_device(backend), op); }
bool gcuda_backend_supports_buft(gcuda_backend_t backend, gcuda_backend_buffer_type_t buft) { return gcuda_backend_dev_supports_buft(gcuda_backend_get_device(backend), buft); }
bool gcuda_backend_offload_op(gcuda_backend_t backend, const struct gcuda_tensor * op) { return gcuda_backend_dev_offload_op(gcuda_backend_get_device(backend), op); }

// ---- copying a graph, comparing two backends ----

struct gcudai_copying {
    struct gcuda_backend_graph_copied out;
    struct gcudai_map map;          // originals
    struct gcuda_tensor ** copies;  // by index in map
    const struct gcuda_tensor ** originals;
    size_t cap_copies, cap_originals;
};

static void gcudai_copying_free(struct gcudai_copying * c) {
    gcudai_map_free(&c->map);
    gcudai_free(c->copies);
    gcudai_free(c->originals);
}

// Enters t, its owner first.
static gcuda_status gcudai_copying_enter(struct gcudai_copying * c, const struct gcuda_tensor * t) {
    size_t index = 0;
    if (t != NULL && t->view_src != NULL) {
        GCUDAI_TRY(gcudai_map_add(&c->map, t->view_src, &index));
    }
    return t != NULL ? gcudai_map_add(&c->map, t, &index) : GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_copying_collect(struct gcudai_copying * c, const struct gcuda_cgraph * graph) {
    void * array = NULL;
    for (int i = 0; i < graph->n_leafs; ++i) {
        GCUDAI_TRY(gcudai_copying_enter(c, graph->leafs[i]));
    }
    for (int i = 0; i < graph->n_nodes; ++i) {
        for (int k = 0; k < GCUDA_MAX_SRC; ++k) {
            GCUDAI_TRY(gcudai_copying_enter(c, graph->nodes[i]->src[k]));
        }
        GCUDAI_TRY(gcudai_copying_enter(c, graph->nodes[i]));
    }
    GCUDAI_TRY(gcudai_grow(&array, &c->cap_copies, c->map.n, sizeof(*c->copies)));
    c->copies = (struct gcuda_tensor **) array;
    array = NULL;
    GCUDAI_TRY(gcudai_grow(&array, &c->cap_originals, c->map.n, sizeof(*c->originals)));
    c->originals = (const struct gcuda_tensor **) array;
    for (size_t i = 0; i < c->map.cap; ++i) {
        if (c->map.keys[i] != NULL) {
            c->originals[c->map.values[i]] = c->map.keys[i];
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

// Description of one tensor; owners come before their views because they were entered first.
static gcuda_status gcudai_copying_describe(struct gcudai_copying * c, size_t i) {
    const struct gcuda_tensor * t = c->originals[i];
    const int64_t none[GCUDA_MAX_DIMS] = { 0, 0, 0, 0 };
    struct gcuda_tensor * u = NULL;
    if (t->view_src == NULL) {
        u = gcudai_tensor_new(c->out.ctx_allocated, t->type, t->ne, NULL, 0);
    } else {
        u = gcudai_tensor_new(c->out.ctx_unallocated, t->type, none, c->copies[gcudai_map_get(&c->map, t->view_src)], 0);
    }
    if (u == NULL) {
        return t->view_src == NULL ? c->out.ctx_allocated->error : c->out.ctx_unallocated->error;
    }
    if (t->view_src == NULL && t->data == NULL && !gcuda_is_empty(t)) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "graph_copy: '%s' has no memory", t->name);
    }
    memcpy(u->ne, t->ne, sizeof(u->ne));
    memcpy(u->nb, t->nb, sizeof(u->nb));
    u->view_offs = t->view_offs;
    u->flags = t->flags;
    memcpy(u->name, t->name, sizeof(u->name));
    c->copies[i] = u;
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_copying_fill(struct gcudai_copying * c, gcuda_backend_t backend) {
    c->out.buffer = gcuda_backend_alloc_ctx_tensors(c->out.ctx_allocated, backend);
    if (c->out.buffer == NULL) {
        return GCUDA_STATUS_ALLOC_FAILED;
    }
    for (size_t i = 0; i < c->map.n; ++i) {
        GCUDAI_TRY(c->copies[i]->view_src ? gcuda_backend_view_init(c->copies[i]) : gcuda_backend_tensor_copy(c->originals[i], c->copies[i]));
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_copying_link(struct gcudai_copying * c, const struct gcuda_cgraph * graph) {
    const size_t size = (size_t) GCUDAI_MAX(GCUDAI_MAX(graph->n_nodes, graph->n_leafs), GCUDAI_MAX(graph->size, 1));
    struct gcuda_cgraph * g = gcuda_new_graph_custom(c->out.ctx_allocated, size, false);
    if (g == NULL) {
        return c->out.ctx_allocated->error;
    }
    for (int i = 0; i < graph->n_leafs; ++i) {
        g->leafs[g->n_leafs++] = c->copies[gcudai_map_get(&c->map, graph->leafs[i])];
    }
    for (int i = 0; i < graph->n_nodes; ++i) {
        const struct gcuda_tensor * t = graph->nodes[i];
        struct gcuda_tensor * u = c->copies[gcudai_map_get(&c->map, t)];
        u->op = t->op;
        memcpy(u->op_params, t->op_params, sizeof(u->op_params));
        for (int k = 0; k < GCUDA_MAX_SRC; ++k) {
            u->src[k] = t->src[k] ? c->copies[gcudai_map_get(&c->map, t->src[k])] : NULL;
        }
        g->nodes[g->n_nodes++] = u;
    }
    gcudai_graph_index(g);
    c->out.graph = g;
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_copying_run(struct gcudai_copying * c, gcuda_backend_t backend, struct gcuda_cgraph * graph) {
    struct gcuda_init_params params;
    GCUDAI_ZERO(params);
    params.no_alloc = true;
    c->out.ctx_allocated = gcuda_init(params);
    c->out.ctx_unallocated = gcuda_init(params);
    if (c->out.ctx_allocated == NULL || c->out.ctx_unallocated == NULL) {
        return GCUDA_STATUS_ALLOC_FAILED;
    }
    GCUDAI_TRY(gcudai_copying_collect(c, graph));
    for (size_t i = 0; i < c->map.n; ++i) {
        GCUDAI_TRY(gcudai_copying_describe(c, i));
    }
    GCUDAI_TRY(gcudai_copying_fill(c, backend));
    return gcudai_copying_link(c, graph);
}

struct gcuda_backend_graph_copied gcuda_backend_graph_copy(gcuda_backend_t backend, struct gcuda_cgraph * graph) {
    struct gcudai_copying c;
    GCUDAI_ZERO(c);
    if (backend == NULL || graph == NULL) {
        gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "graph_copy: backend or graph is NULL");
    } else if (gcudai_copying_run(&c, backend, graph) != GCUDA_STATUS_SUCCESS) {
        gcuda_backend_graph_copy_free(c.out);
        GCUDAI_ZERO(c.out);
    }
    gcudai_copying_free(&c);
    return c.out;
}

void gcuda_backend_graph_copy_free(struct gcuda_backend_graph_copied copy) {
    gcuda_backend_buffer_free(copy.buffer);
    gcuda_free(copy.ctx_allocated);
    gcuda_free(copy.ctx_unallocated);
}

static gcuda_status gcudai_compare_whole(gcuda_backend_t b1, gcuda_backend_t b2, struct gcuda_cgraph * g1, struct gcuda_cgraph * g2, gcuda_backend_eval_callback callback, void * user_data, struct gcuda_tensor * const * test_nodes, size_t n) {
    GCUDAI_TRY(gcuda_backend_graph_compute(b1, g1));
    GCUDAI_TRY(gcuda_backend_graph_compute(b2, g2));
    for (int i = 0; i < g1->n_nodes; ++i) {
        for (size_t k = 0; k < n; ++k) {
            if (g1->nodes[i] == test_nodes[k] && !callback(i, g1->nodes[i], g2->nodes[i], user_data)) {
                return GCUDA_STATUS_SUCCESS;
            }
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_compare_nodes(gcuda_backend_t b1, gcuda_backend_t b2, struct gcuda_cgraph * g1, struct gcuda_cgraph * g2, gcuda_backend_eval_callback callback, void * user_data) {
    for (int i = 0; i < g1->n_nodes; ++i) {
        struct gcuda_cgraph v1 = gcuda_graph_view(g1, i, i + 1), v2 = gcuda_graph_view(g2, i, i + 1);
        GCUDAI_TRY(gcuda_backend_graph_compute(b1, &v1));
        GCUDAI_TRY(gcuda_backend_graph_compute(b2, &v2));
        if ((gcudai_op_row(g1->nodes[i]->op)->flags & GCUDAI_OP_VIEW) == 0 && !callback(i, g1->nodes[i], g2->nodes[i], user_data)) {
            break;
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status gcuda_backend_compare_graph_backend(gcuda_backend_t backend1, gcuda_backend_t backend2, struct gcuda_cgraph * graph, gcuda_backend_eval_callback callback, void * user_data, struct gcuda_tensor * const * test_nodes, size_t n_test_nodes) {
    if (backend1 == NULL || callback == NULL || (n_test_nodes > 0 && test_nodes == NULL)) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "compare_graph_backend: backend, callback or list of nodes is NULL");
    }
    struct gcuda_backend_graph_copied copy = gcuda_backend_graph_copy(backend2, graph);
    if (copy.graph == NULL) {
        return gcudai_fail(GCUDA_STATUS_FAILED, "compare_graph_backend: %.900s", gcudai_message);
    }
    const gcuda_status st = n_test_nodes > 0 ? gcudai_compare_whole(backend1, backend2, graph, copy.graph, callback, user_data, test_nodes, n_test_nodes)
                                             : gcudai_compare_nodes(backend1, backend2, graph, copy.graph, callback, user_data);
    gcuda_backend_graph_copy_free(copy);
    return st;
}

// ---- events ----

gcuda_backend_event_t gcuda_backend_event_new(gcuda_backend_dev_t dev) {
    gcuda_backend_event_t event = NULL;
    if (dev == NULL || dev->iface.event_new == NULL) {
        gcudai_fail(GCUDA_STATUS_UNSUPPORTED, "event_new: device %s has no events", gcuda_backend_dev_name(dev));
        return NULL;
    }
    return dev->iface.event_new(dev, &event) == GCUDA_STATUS_SUCCESS ? event : NULL;
}

void gcuda_backend_event_free(gcuda_backend_event_t event) {
    if (event != NULL) {
        event->device->iface.event_free(event->device, event);
    }
}

gcuda_status gcuda_backend_event_record(gcuda_backend_event_t event, gcuda_backend_t backend) {
    if (event == NULL || backend == NULL || backend->iface.event_record == NULL) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "event_record: event or backend is NULL, or backend %s has no events", gcuda_backend_name(backend));
    }
    return backend->iface.event_record(backend, event);
}

gcuda_status gcuda_backend_event_synchronize(gcuda_backend_event_t event) {
    if (event == NULL) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "event_synchronize: event is NULL");
    }
    return event->device->iface.event_synchronize(event->device, event);
}

gcuda_status gcuda_backend_event_query(gcuda_backend_event_t event, bool * done) {
    if (event == NULL || done == NULL || event->device->iface.event_query == NULL) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "event_query: event or result is NULL, or the device cannot");
    }
    return event->device->iface.event_query(event->device, event, done);
}

gcuda_status gcuda_backend_event_wait(gcuda_backend_t backend, gcuda_backend_event_t event) {
    if (event == NULL || backend == NULL || backend->iface.event_wait == NULL) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "event_wait: event or backend is NULL, or backend %s has no events", gcuda_backend_name(backend));
    }
    return backend->iface.event_wait(backend, event);
}

// ---- devices ----

const char * gcuda_backend_dev_name(gcuda_backend_dev_t dev) { return dev ? dev->iface.get_name(dev) : ""; }
const char * gcuda_backend_dev_description(gcuda_backend_dev_t dev) { return dev ? dev->iface.get_description(dev) : ""; }
enum gcuda_backend_dev_type gcuda_backend_dev_type(gcuda_backend_dev_t dev) { return dev ? dev->iface.get_type(dev) : GCUDA_BACKEND_DEVICE_TYPE_CPU; }
gcuda_backend_reg_t gcuda_backend_dev_backend_reg(gcuda_backend_dev_t dev) { return dev ? dev->reg : NULL; }
gcuda_backend_buffer_type_t gcuda_backend_dev_buffer_type(gcuda_backend_dev_t dev) { return dev ? dev->iface.get_buffer_type(dev) : NULL; }
gcuda_backend_buffer_type_t gcuda_backend_dev_host_buffer_type(gcuda_backend_dev_t dev) { return dev && dev->iface.get_host_buffer_type ? dev->iface.get_host_buffer_type(dev) : NULL; }
bool gcuda_backend_dev_supports_buft(gcuda_backend_dev_t dev, gcuda_backend_buffer_type_t buft) { return dev != NULL && buft != NULL && dev->iface.supports_buft(dev, buft); }
bool gcuda_backend_dev_offload_op(gcuda_backend_dev_t dev, const struct gcuda_tensor * op) { return dev != NULL && op != NULL && dev->iface.offload_op && dev->iface.offload_op(dev, op); }

bool gcuda_backend_dev_supports_op(gcuda_backend_dev_t dev, const struct gcuda_tensor * op) {
    if (dev == NULL || op == NULL) {
        gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "supports_op: device or node is NULL");
        return false;
    }
    return dev->iface.supports_op(dev, op) == GCUDA_STATUS_SUCCESS;
}

gcuda_status gcuda_backend_dev_memory(gcuda_backend_dev_t dev, size_t * free, size_t * total) {
    size_t a = 0, b = 0;
    gcuda_status st = dev ? dev->iface.get_memory(dev, &a, &b) : gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "dev_memory: device is NULL");
    if (free != NULL) {
        *free = a;
    }
    if (total != NULL) {
        *total = b;
    }
    return st;
}

gcuda_status gcuda_backend_dev_get_props(gcuda_backend_dev_t dev, struct gcuda_backend_dev_props * props) {
    if (dev == NULL || props == NULL) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "dev_get_props: device or result is NULL");
    }
    memset(props, 0, sizeof(*props));
    return dev->iface.get_props(dev, props);
}

gcuda_backend_t gcuda_backend_dev_init(gcuda_backend_dev_t dev, const char * params) {
    gcuda_backend_t backend = NULL;
    if (dev == NULL) {
        gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "dev_init: device is NULL");
        return NULL;
    }
    return dev->iface.init_backend(dev, params, &backend) == GCUDA_STATUS_SUCCESS ? backend : NULL;
}

gcuda_backend_buffer_t gcuda_backend_dev_buffer_from_host_ptr(gcuda_backend_dev_t dev, void * ptr, size_t size, size_t max_tensor_size) {
    gcuda_backend_buffer_t buffer = NULL;
    if (dev == NULL || dev->iface.buffer_from_host_ptr == NULL) {
        gcudai_fail(GCUDA_STATUS_UNSUPPORTED, "buffer_from_host_ptr: device %s cannot", gcuda_backend_dev_name(dev));
        return NULL;
    }
    return dev->iface.buffer_from_host_ptr(dev, ptr, size, max_tensor_size, &buffer) == GCUDA_STATUS_SUCCESS ? buffer : NULL;
}

// ---- registry: the built-in CPU first, then what was registered ----

const char * gcuda_backend_reg_name(gcuda_backend_reg_t reg) { return reg ? reg->iface.get_name(reg) : ""; }
size_t gcuda_backend_reg_dev_count(gcuda_backend_reg_t reg) { return reg ? reg->iface.get_device_count(reg) : 0; }

gcuda_backend_dev_t gcuda_backend_reg_dev_get(gcuda_backend_reg_t reg, size_t index) {
    if (index >= gcuda_backend_reg_dev_count(reg)) {
        gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "reg_dev_get: device %llu of %llu", (unsigned long long) index, (unsigned long long) gcuda_backend_reg_dev_count(reg));
        return NULL;
    }
    return reg->iface.get_device(reg, index);
}

void * gcuda_backend_reg_get_proc_address(gcuda_backend_reg_t reg, const char * name) {
    return reg && name && reg->iface.get_proc_address ? reg->iface.get_proc_address(reg, name) : NULL;
}

static size_t gcudai_reg_find(gcuda_backend_reg_t reg) {
    size_t i = 0;
    while (i < gcudai_g.n_regs && gcudai_g.regs[i] != reg) {
        ++i;
    }
    return i;
}

gcuda_status gcuda_backend_register(gcuda_backend_reg_t reg) {
    if (reg == NULL || reg->api_version != GCUDA_BACKEND_API_VERSION) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "backend_register: registry is NULL or of version %d, want %d", reg ? reg->api_version : 0, GCUDA_BACKEND_API_VERSION);
    }
    const size_t n_wanted = gcuda_backend_reg_count() + 8;
    gcuda_backend_reg_t * more = (gcuda_backend_reg_t *) gcudai_calloc(n_wanted, sizeof(*more)); // outside the lock, which allocation takes too
    gcuda_backend_reg_t * unused = more;
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    gcudai_mutex_lock(&gcudai_g.lock);
    if (gcudai_reg_find(reg) == gcudai_g.n_regs) {
        if (gcudai_g.n_regs == gcudai_g.cap_regs && more != NULL && gcudai_g.n_regs < n_wanted) {
            if (gcudai_g.n_regs > 0) {
                memcpy(more, gcudai_g.regs, gcudai_g.n_regs * sizeof(*more));
            }
            unused = gcudai_g.regs;
            gcudai_g.regs = more;
            gcudai_g.cap_regs = n_wanted;
        }
        if (gcudai_g.n_regs < gcudai_g.cap_regs) {
            gcudai_g.regs[gcudai_g.n_regs++] = reg;
        } else {
            st = GCUDA_STATUS_ALLOC_FAILED;
        }
    }
    gcudai_mutex_unlock(&gcudai_g.lock);
    gcudai_free(unused);
    return st;
}

#define GCUDAI_N_BUILTIN_REGS 1

size_t gcuda_backend_reg_count(void) {
    gcudai_mutex_lock(&gcudai_g.lock);
    const size_t n = gcudai_g.n_regs + GCUDAI_N_BUILTIN_REGS;
    gcudai_mutex_unlock(&gcudai_g.lock);
    return n;
}

gcuda_backend_reg_t gcuda_backend_reg_get(size_t index) {
    gcuda_backend_reg_t reg = NULL;
    if (index == 0) {
        return gcuda_backend_cpu_reg();
    }
    gcudai_mutex_lock(&gcudai_g.lock);
    if (index - GCUDAI_N_BUILTIN_REGS < gcudai_g.n_regs) {
        reg = gcudai_g.regs[index - GCUDAI_N_BUILTIN_REGS];
    }
    gcudai_mutex_unlock(&gcudai_g.lock);
    if (reg == NULL) {
        gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "reg_get: index %llu is out of range", (unsigned long long) index);
    }
    return reg;
}

gcuda_backend_reg_t gcuda_backend_reg_by_name(const char * name) {
    for (size_t i = 0; name != NULL && i < gcuda_backend_reg_count(); ++i) {
        const gcuda_backend_reg_t reg = gcuda_backend_reg_get(i);
        if (reg != NULL && strcmp(gcuda_backend_reg_name(reg), name) == 0) {
            return reg;
        }
    }
    return NULL;
}

size_t gcuda_backend_dev_count(void) {
    size_t n = 0;
    for (size_t i = 0; i < gcuda_backend_reg_count(); ++i) {
        n += gcuda_backend_reg_dev_count(gcuda_backend_reg_get(i));
    }
    return n;
}

gcuda_backend_dev_t gcuda_backend_dev_get(size_t index) {
    for (size_t i = 0; i < gcuda_backend_reg_count(); ++i) {
        const gcuda_backend_reg_t reg = gcuda_backend_reg_get(i);
        const size_t n = gcuda_backend_reg_dev_count(reg);
        if (index < n) {
            return gcuda_backend_reg_dev_get(reg, index);
        }
        index -= n;
    }
    gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "dev_get: there are only %llu devices", (unsigned long long) gcuda_backend_dev_count());
    return NULL;
}

gcuda_backend_dev_t gcuda_backend_dev_by_name(const char * name) {
    for (size_t i = 0; name != NULL && i < gcuda_backend_dev_count(); ++i) {
        const gcuda_backend_dev_t dev = gcuda_backend_dev_get(i);
        if (dev != NULL && strcmp(gcuda_backend_dev_name(dev), name) == 0) {
            return dev;
        }
    }
    gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "no device '%s'", name ? name : "");
    return NULL;
}

gcuda_backend_dev_t gcuda_backend_dev_by_type(enum gcuda_backend_dev_type type) {
    for (size_t i = 0; i < gcuda_backend_dev_count(); ++i) {
        const gcuda_backend_dev_t dev = gcuda_backend_dev_get(i);
        if (dev != NULL && gcuda_backend_dev_type(dev) == type) {
            return dev;
        }
    }
    return NULL;
}

gcuda_backend_t gcuda_backend_init_by_name(const char * name, const char * params) {
    const gcuda_backend_dev_t dev = gcuda_backend_dev_by_name(name);
    return dev ? gcuda_backend_dev_init(dev, params) : NULL;
}

gcuda_backend_t gcuda_backend_init_by_type(enum gcuda_backend_dev_type type, const char * params) {
    const gcuda_backend_dev_t dev = gcuda_backend_dev_by_type(type);
    if (dev == NULL) {
        gcudai_fail(GCUDA_STATUS_UNSUPPORTED, "no device of type %d", (int) type);
    }
    return dev ? gcuda_backend_dev_init(dev, params) : NULL;
}

gcuda_backend_t gcuda_backend_init_best(void) {
    const gcuda_backend_dev_t gpu = gcuda_backend_dev_by_type(GCUDA_BACKEND_DEVICE_TYPE_GPU);
    const gcuda_backend_t backend = gpu ? gcuda_backend_dev_init(gpu, NULL) : NULL;
    return backend ? backend : gcuda_backend_cpu_init();
}

void gcuda_shutdown(void) {
    gcudai_mutex_lock(&gcudai_g.lock);
    gcuda_backend_reg_t * regs = gcudai_g.regs;
    gcudai_g.regs = NULL;
    gcudai_g.n_regs = gcudai_g.cap_regs = 0;
    gcudai_g.log = NULL;
    gcudai_g.log_user = NULL;
    gcudai_g.log_level = GCUDA_LOG_LEVEL_NONE;
    GCUDAI_ZERO(gcudai_g.allocator);
    gcudai_mutex_unlock(&gcudai_g.lock);
    gcudai_free(regs);
}

int64_t gcuda_time_us(void) { return gcudai_time_us(); }
int64_t gcuda_time_ms(void) { return gcudai_time_us() / 1000; }

// =====================================================================================================
// >>impl-cpu   CPU backend, thread pool
// =====================================================================================================

// -- thread pool ---------------------------------------------------------------------------------------
// A job is a number of chunks, taken one by one from an atomic counter. Its whole life is in one atomic word:
//
//   bits 63..32 number of the job | 31 open | 30..16 threads allowed | 15..0 workers inside
//
// A worker enters by a compare-exchange that needs the job open, so a late one cannot touch a job that has ended: its
// caller first clears `open`, then waits until nobody is inside, and only then may the job's plain fields change.
#define GCUDAI_JOB_OPEN ((int64_t) 0x80000000)

struct gcudai_pool_worker {
    gcudai_thread thread;
    struct gcuda_threadpool * pool;
    int index; // 1 .. n_threads - 1; 0 is the caller
};

struct gcuda_threadpool {
    gcudai_mutex job_lock; // held by the caller whose job runs
    gcudai_mutex lock;     // for the two conditions and n_sleeping
    gcudai_cond wake;      // to workers: a job was published, or stop
    gcudai_cond left;      // to the caller: the last worker left a closed job
    struct gcuda_threadpool_params params;
    struct gcudai_pool_worker * workers;
    int n_workers;
    int n_sleeping;
    int64_t spin_us;
    int64_t n_jobs; // written by the caller under job_lock, as are the next four
    void (*fn)(void * user, int64_t chunk, int thread);
    void * user;
    int64_t n_chunks;
    char pad0[64]; // the three below are on lines of their own: all threads write them
    gcudai_atomic_i64 job;
    char pad1[64];
    gcudai_atomic_i64 next_chunk;
    char pad2[64];
    gcudai_atomic_i32 abort;
    gcudai_atomic_i32 stop;
    gcudai_atomic_i32 paused;
};

static int gcudai_job_inside(int64_t job) { return (int) (job & 0xffff); }

static int gcudai_job_threads(int64_t job) { return (int) (job >> 16 & 0x7fff); }

static bool gcudai_pool_enter(struct gcuda_threadpool * pool, int index, int64_t * last_job) {
    for (;;) {
        const int64_t job = gcudai_atomic_load_i64(&pool->job);
        const bool is_open = (job & GCUDAI_JOB_OPEN) != 0;
        if (!is_open || job >> 32 == *last_job || index >= gcudai_job_threads(job)) { return false; }
        if (gcudai_atomic_cas_i64(&pool->job, job, job + 1)) {
            *last_job = job >> 32;
            return true;
        }
    }
}

static void gcudai_pool_leave(struct gcuda_threadpool * pool) {
    const int64_t before = gcudai_atomic_add_i64(&pool->job, -1);
    if ((before & GCUDAI_JOB_OPEN) == 0 && gcudai_job_inside(before) == 1) {
        gcudai_mutex_lock(&pool->lock);
        gcudai_cond_signal(&pool->left);
        gcudai_mutex_unlock(&pool->lock);
    }
}

static void gcudai_pool_take_chunks(struct gcuda_threadpool * pool, int thread) {
    while (gcudai_atomic_load_i32(&pool->abort) == 0) {
        const int64_t chunk = gcudai_atomic_add_i64(&pool->next_chunk, 1);
        if (chunk >= pool->n_chunks) { return; }
        pool->fn(pool->user, chunk, thread);
    }
}

// Looks for a job for a short while, so that the nodes of a graph follow each other without a sleep in between.
static bool gcudai_pool_spin(struct gcuda_threadpool * pool, int index, int64_t * last_job) {
    const int64_t end_us = gcudai_time_us() + pool->spin_us;
    while (gcudai_atomic_load_i32(&pool->stop) == 0 && gcudai_atomic_load_i32(&pool->paused) == 0) {
        if (gcudai_pool_enter(pool, index, last_job)) { return true; }
        for (int i = 0; i < 8; ++i) { gcudai_cpu_relax(); }
        if (gcudai_time_us() >= end_us) { return false; }
    }
    return false;
}

// Waits for a job and enters it; false when the pool ends.
static bool gcudai_pool_next_job(struct gcuda_threadpool * pool, int index, int64_t * last_job) {
    if (pool->spin_us > 0 && gcudai_pool_spin(pool, index, last_job)) { return true; }
    bool has_job = false;
    gcudai_mutex_lock(&pool->lock);
    while (gcudai_atomic_load_i32(&pool->stop) == 0) {
        has_job = gcudai_pool_enter(pool, index, last_job);
        if (has_job) { break; }
        ++pool->n_sleeping;
        gcudai_cond_wait(&pool->wake, &pool->lock);
        --pool->n_sleeping;
    }
    gcudai_mutex_unlock(&pool->lock);
    return has_job;
}

// Affinity and priority are wishes: where the system refuses, the thread runs as any other.
static void gcudai_pool_place_worker(const struct gcuda_threadpool_params * p, int index) {
    bool mask[GCUDA_MAX_N_THREADS];
    int n_set = 0;
    for (int i = 0; i < GCUDA_MAX_N_THREADS; ++i) { n_set += p->cpumask[i] ? 1 : 0; }
    int rank = 0;
    for (int i = 0; i < GCUDA_MAX_N_THREADS; ++i) {
        mask[i] = p->cpumask[i] && (!p->strict_cpu || rank == index % n_set);
        rank += p->cpumask[i] ? 1 : 0;
    }
    if (n_set > 0) { (void) gcudai_thread_set_affinity(mask, GCUDA_MAX_N_THREADS); }
    (void) gcudai_thread_set_priority((int) p->prio);
}

static void gcudai_pool_worker_main(void * arg) {
    const struct gcudai_pool_worker * w = (const struct gcudai_pool_worker *) arg;
    struct gcuda_threadpool * pool = w->pool;
    int64_t last_job = 0;
    gcudai_pool_place_worker(&pool->params, w->index);
    while (gcudai_pool_next_job(pool, w->index, &last_job)) {
        gcudai_pool_take_chunks(pool, w->index);
        gcudai_pool_leave(pool);
    }
}

static void gcudai_pool_publish(struct gcuda_threadpool * pool, int n_threads) {
    gcudai_atomic_store_i64(&pool->next_chunk, 0);
    gcudai_atomic_store_i32(&pool->abort, 0);
    gcudai_atomic_store_i32(&pool->paused, 0);
    pool->n_jobs = pool->n_jobs % INT32_MAX + 1; // never 0, which workers start from
    const int64_t job = pool->n_jobs * ((int64_t) 1 << 32) + GCUDAI_JOB_OPEN + (int64_t) n_threads * 65536;
    gcudai_mutex_lock(&pool->lock); // a worker looks for the job and falls asleep under this lock: it cannot miss both
    gcudai_atomic_store_i64(&pool->job, job);
    if (pool->n_sleeping > 0) { gcudai_cond_broadcast(&pool->wake); }
    gcudai_mutex_unlock(&pool->lock);
}

// The caller's last part: no worker enters any more, and those inside end their chunks. False when told to abort.
static bool gcudai_pool_wait_workers(struct gcuda_threadpool * pool, bool (*poll_abort)(void *), void * abort_user) {
    bool is_aborted = false;
    (void) gcudai_atomic_add_i64(&pool->job, -GCUDAI_JOB_OPEN);
    const int64_t end_us = gcudai_time_us() + 2 * pool->spin_us;
    while (gcudai_job_inside(gcudai_atomic_load_i64(&pool->job)) > 0) {
        if (gcudai_time_us() < end_us) {
            for (int i = 0; i < 8; ++i) { gcudai_cpu_relax(); }
            continue;
        }
        gcudai_mutex_lock(&pool->lock);
        if (gcudai_job_inside(gcudai_atomic_load_i64(&pool->job)) > 0) {
            (void) gcudai_cond_wait_us(&pool->left, &pool->lock, 2000);
        }
        gcudai_mutex_unlock(&pool->lock);
        if (!is_aborted && poll_abort != NULL && poll_abort(abort_user)) {
            is_aborted = true;
            gcudai_atomic_store_i32(&pool->abort, 1);
        }
    }
    return !is_aborted;
}

// Calls fn(user, chunk, thread) for every chunk in [0, n_chunks), on at most n_threads threads; `thread` is below
// n_threads and differs between calls that run at the same time. The caller works as thread 0 and asks poll_abort (NULL:
// never) after each of its chunks and at least every 2 ms while it waits. False when that said to stop: then some chunks
// may not have run. On return no thread is inside fn. Must not be called from fn with the same pool.
static bool gcudai_pool_run(struct gcuda_threadpool * pool, int n_threads, int64_t n_chunks,
                            void (*fn)(void * user, int64_t chunk, int thread), void * user,
                            bool (*poll_abort)(void *), void * abort_user) {
    const int n_pool = gcuda_threadpool_get_n_threads(pool);
    if (n_threads > n_pool) { n_threads = n_pool; }
    if (n_threads > n_chunks) { n_threads = (int) n_chunks; }
    if (n_threads <= 1) {
        for (int64_t chunk = 0; chunk < n_chunks; ++chunk) {
            fn(user, chunk, 0);
            if (poll_abort != NULL && poll_abort(abort_user)) { return false; }
        }
        return true;
    }
    bool is_complete = true;
    gcudai_mutex_lock(&pool->job_lock);
    pool->fn = fn;
    pool->user = user;
    pool->n_chunks = n_chunks;
    gcudai_pool_publish(pool, n_threads);
    int64_t chunk = gcudai_atomic_add_i64(&pool->next_chunk, 1);
    while (is_complete && chunk < n_chunks) {
        fn(user, chunk, 0);
        if (poll_abort != NULL && poll_abort(abort_user)) {
            is_complete = false;
            gcudai_atomic_store_i32(&pool->abort, 1);
        }
        chunk = gcudai_atomic_add_i64(&pool->next_chunk, 1);
    }
    if (!gcudai_pool_wait_workers(pool, is_complete ? poll_abort : NULL, abort_user)) { is_complete = false; }
    gcudai_mutex_unlock(&pool->job_lock);
    return is_complete;
}

void gcuda_threadpool_params_init(struct gcuda_threadpool_params * p, int n_threads) {
    memset(p, 0, sizeof(*p));
    p->n_threads = n_threads > 0 ? n_threads : GCUDA_DEFAULT_N_THREADS;
    p->poll = 50;
}

struct gcuda_threadpool_params gcuda_threadpool_params_default(int n_threads) {
    struct gcuda_threadpool_params p;
    gcuda_threadpool_params_init(&p, n_threads);
    return p;
}

static struct gcuda_threadpool_params gcudai_pool_resolve(const struct gcuda_threadpool_params * given) {
    struct gcuda_threadpool_params p = gcuda_threadpool_params_default(0);
    if (given != NULL) {
        const int n_default = p.n_threads;
        p = *given;
        if (p.n_threads == 0) { p.n_threads = n_default; }
        if (p.poll == 0) { p.poll = 50; }
        if (p.poll > 100) { p.poll = 100; }
    }
    return p;
}

bool gcuda_threadpool_params_match(const struct gcuda_threadpool_params * a, const struct gcuda_threadpool_params * b) {
    const struct gcuda_threadpool_params p = gcudai_pool_resolve(a);
    const struct gcuda_threadpool_params q = gcudai_pool_resolve(b);
    return p.n_threads == q.n_threads && p.prio == q.prio && p.poll == q.poll && p.strict_cpu == q.strict_cpu &&
           p.paused == q.paused && memcmp(p.cpumask, q.cpumask, sizeof(p.cpumask)) == 0;
}

static bool gcudai_pool_init_locks(struct gcuda_threadpool * pool) {
    if (!gcudai_mutex_init(&pool->job_lock)) { return false; }
    if (gcudai_mutex_init(&pool->lock)) {
        if (gcudai_cond_init(&pool->wake)) {
            if (gcudai_cond_init(&pool->left)) { return true; }
            gcudai_cond_destroy(&pool->wake);
        }
        gcudai_mutex_destroy(&pool->lock);
    }
    gcudai_mutex_destroy(&pool->job_lock);
    return false;
}

static void gcudai_pool_start_workers(struct gcuda_threadpool * pool) {
    const int n_wanted = pool->params.n_threads - 1;
    while (pool->n_workers < n_wanted) {
        struct gcudai_pool_worker * w = &pool->workers[pool->n_workers];
        w->pool = pool;
        w->index = pool->n_workers + 1;
        if (!gcudai_thread_start(&w->thread, gcudai_pool_worker_main, w)) { break; }
        ++pool->n_workers;
    }
}

struct gcuda_threadpool * gcuda_threadpool_new(const struct gcuda_threadpool_params * params) {
    const struct gcuda_threadpool_params p = gcudai_pool_resolve(params);
    if (p.n_threads < 0 || p.n_threads > GCUDA_MAX_N_THREADS) {
        (void) gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "threadpool_new: n_threads is %d, want 1 to %d", p.n_threads,
                           GCUDA_MAX_N_THREADS);
        return NULL;
    }
    struct gcuda_threadpool * pool = (struct gcuda_threadpool *) gcudai_calloc(1, sizeof(*pool));
    if (pool == NULL) { return NULL; }
    pool->workers = (struct gcudai_pool_worker *) gcudai_calloc((size_t) p.n_threads, sizeof(*pool->workers));
    if (pool->workers == NULL || !gcudai_pool_init_locks(pool)) {
        gcudai_free(pool->workers);
        gcudai_free(pool);
        (void) gcudai_fail(GCUDA_STATUS_ALLOC_FAILED, "threadpool_new: no memory for %d threads", p.n_threads);
        return NULL;
    }
    pool->params = p;
    // more threads than processors: who spins holds up who works
    pool->spin_us = p.n_threads > gcudai_cpu_count() ? 0 : (int64_t) p.poll * 2 / 5;
    gcudai_atomic_store_i32(&pool->paused, p.paused ? 1 : 0);
    gcudai_pool_start_workers(pool);
#if !defined(GCUDA_NO_THREADS)
    if (pool->n_workers + 1 < p.n_threads) {
        gcudai_log(GCUDA_LOG_LEVEL_WARN, "threadpool_new: the system gave %d of %d threads\n", pool->n_workers + 1, p.n_threads);
    }
#endif
    return pool;
}

void gcuda_threadpool_free(struct gcuda_threadpool * pool) {
    if (pool == NULL) { return; }
    gcudai_mutex_lock(&pool->lock);
    gcudai_atomic_store_i32(&pool->stop, 1);
    gcudai_cond_broadcast(&pool->wake);
    gcudai_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->n_workers; ++i) { gcudai_thread_join(&pool->workers[i].thread); }
    gcudai_cond_destroy(&pool->left);
    gcudai_cond_destroy(&pool->wake);
    gcudai_mutex_destroy(&pool->lock);
    gcudai_mutex_destroy(&pool->job_lock);
    gcudai_free(pool->workers);
    gcudai_free(pool);
}

int gcuda_threadpool_get_n_threads(const struct gcuda_threadpool * pool) { return pool != NULL ? pool->n_workers + 1 : 1; }

void gcuda_threadpool_pause(struct gcuda_threadpool * pool) {
    if (pool != NULL) { gcudai_atomic_store_i32(&pool->paused, 1); }
}

void gcuda_threadpool_resume(struct gcuda_threadpool * pool) {
    if (pool != NULL) { gcudai_atomic_store_i32(&pool->paused, 0); }
}

// ---- computing a graph ----

struct gcudai_run {
    gcudai_mutex lock; // guards the four below
    const struct gcuda_tensor * bad_node;
    int64_t bad_position, bad_value, bad_limit;
    const struct gcuda_tensor * node; // being computed
};

GCUDAI_UNUSED static void gcudai_bad_index(const struct gcudai_task * t, int64_t position, int64_t value, int64_t limit) {
    struct gcudai_run * run = t->run;
    gcudai_mutex_lock(&run->lock);
    if (run->bad_node == NULL || (run->bad_node == run->node && position < run->bad_position)) {
        run->bad_node = run->node;
        run->bad_position = position;
        run->bad_value = value;
        run->bad_limit = limit;
    }
    gcudai_mutex_unlock(&run->lock);
}

// What one call computes with.
struct gcudai_cpu_setup {
    int n_threads;
    struct gcuda_threadpool * pool; // NULL: the calling thread alone
    char * work;                    // 64-byte aligned
    size_t work_size;
    gcuda_abort_callback abort;
    void * abort_data;
    bool check_finite;
};

static bool gcudai_is_skipped(const struct gcuda_tensor * t) { return gcudai_is_noop(t) || !(t->flags & GCUDA_TENSOR_FLAG_COMPUTE); }

// The one rule of what the CPU can do: supports_op and compute both ask it.
static gcuda_status gcudai_cpu_supports(const struct gcuda_tensor * y) {
    GCUDAI_TRY(gcudai_check_node(y));
    return gcuda_is_empty(y) ? GCUDA_STATUS_SUCCESS : gcudai_op_row(y->op)->can(y);
}

static gcuda_status gcudai_cpu_want_data(const struct gcuda_tensor * y, const struct gcuda_tensor * t) {
    if (!gcuda_is_empty(t)) {
        GCUDAI_WANT(y, t->data != NULL, "'%s' has no memory", t->name);
        GCUDAI_WANT(y, gcudai_in_host_memory(t), "'%s' is not in host memory", t->name);
        GCUDAI_WANT(y, (uintptr_t) t->data % gcudai_type_align(t->type) == 0, "the data of '%s' is not aligned to %llu bytes", t->name,
                    (unsigned long long) gcudai_type_align(t->type));
    }
    return GCUDA_STATUS_SUCCESS;
}

static size_t gcudai_work_bytes(const struct gcudai_work * w, int n_threads) {
    size_t local = 0, bytes = 0;
    const bool is_ok = w->local_bytes < SIZE_MAX / 2 && w->shared_bytes < SIZE_MAX / 2 && gcudai_mul_size(gcudai_pad(w->local_bytes, GCUDAI_ALIGN), (size_t) n_threads, &local) &&
                       gcudai_add_size(gcudai_pad(w->shared_bytes, GCUDAI_ALIGN), local, &bytes);
    return is_ok ? bytes : SIZE_MAX;
}

// Refuses a graph before anything runs; else the bytes of scratch that its largest node needs.
static gcuda_status gcudai_cpu_prepare(const struct gcuda_cgraph * graph, int n_threads, size_t * work_size) {
    *work_size = 0;
    for (int i = 0; i < graph->n_nodes; ++i) {
        const struct gcuda_tensor * y = graph->nodes[i];
        struct gcudai_work w;
        GCUDAI_TRY(gcudai_cpu_supports(y));
        if (gcudai_is_skipped(y)) {
            continue;
        }
        GCUDAI_TRY(gcudai_cpu_want_data(y, y));
        for (int k = 0; k < GCUDA_MAX_SRC; ++k) {
            if (y->src[k] != NULL) {
                GCUDAI_TRY(gcudai_cpu_want_data(y, y->src[k]));
            }
        }
        GCUDAI_ZERO(w);
        gcudai_op_row(y->op)->work(y, &w);
        const size_t bytes = gcudai_work_bytes(&w, n_threads);
        *work_size = GCUDAI_MAX(*work_size, bytes);
    }
    return *work_size < SIZE_MAX ? GCUDA_STATUS_SUCCESS : gcudai_fail(GCUDA_STATUS_ALLOC_FAILED, "graph_compute: scratch memory overflows");
}

// One phase of a node, cut into chunks.
struct gcudai_cpu_job {
    const struct gcudai_op_info * info;
    const union gcudai_args * args;
    struct gcudai_run * run;
    int64_t n_items, items_per_chunk;
    int phase;
    char * shared;
    char * local; // of thread 0; the next ones follow at local_stride
    size_t local_stride;
};

static void gcudai_cpu_chunk(void * user, int64_t chunk, int thread) {
    const struct gcudai_cpu_job * job = (const struct gcudai_cpu_job *) user;
    struct gcudai_task t;
    t.i0 = chunk * job->items_per_chunk;
    t.i1 = GCUDAI_MIN(t.i0 + job->items_per_chunk, job->n_items);
    t.phase = job->phase;
    t.shared = job->shared;
    t.local = job->local + (size_t) thread * job->local_stride;
    t.run = job->run;
    job->info->cpu(job->args, &t);
}

// A chunk takes about 1 ms at most, for the abort callback; work below 10 us stays on the calling thread.
#define GCUDAI_CHUNK_MAX_COST 3e6
#define GCUDAI_CHUNK_MIN_COST 1.5e4
#define GCUDAI_INLINE_COST 3e4

static bool gcudai_cpu_phase(struct gcudai_cpu_job * job, double item_cost, const struct gcudai_cpu_setup * s) {
    const double cost = GCUDAI_MAX(item_cost, 1.0), total = cost * (double) job->n_items;
    const int n_threads = total < GCUDAI_INLINE_COST ? 1 : s->n_threads;
    const double wanted = total / (4.0 * (double) n_threads);
    const double per_chunk = GCUDAI_MIN(GCUDAI_MAX(wanted, GCUDAI_CHUNK_MIN_COST), GCUDAI_CHUNK_MAX_COST) / cost;
    job->items_per_chunk = per_chunk < 1.0 ? 1 : per_chunk > (double) job->n_items ? job->n_items : (int64_t) per_chunk;
    const int64_t n_chunks = (job->n_items - 1) / job->items_per_chunk + 1;
    return gcudai_pool_run(s->pool, n_threads, n_chunks, gcudai_cpu_chunk, job, s->abort, s->abort_data);
}

static gcuda_status gcudai_cpu_run_node(const struct gcuda_tensor * y, const struct gcudai_cpu_setup * s, struct gcudai_run * run) {
    union gcudai_args args;
    struct gcudai_work w;
    struct gcudai_cpu_job job;
    GCUDAI_ZERO(args);
    GCUDAI_ZERO(w);
    GCUDAI_ZERO(job);
    job.info = gcudai_op_row(y->op);
    job.info->args(y, &args);
    job.info->work(y, &w);
    job.args = &args;
    job.run = run;
    job.shared = s->work;
    job.local = s->work ? s->work + gcudai_pad(w.shared_bytes, GCUDAI_ALIGN) : NULL;
    job.local_stride = gcudai_pad(w.local_bytes, GCUDAI_ALIGN);
    run->node = y;
    for (job.phase = 0; job.phase < GCUDAI_MAX(w.n_phases, 1); ++job.phase) {
        job.n_items = w.n_items[job.phase];
        if (job.n_items > 0 && !gcudai_cpu_phase(&job, w.item_cost[job.phase], s)) {
            return gcudai_node_fail(GCUDA_STATUS_ABORTED, y, "aborted by the callback");
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_cpu_check_finite(const struct gcuda_tensor * y) {
    const struct gcuda_array a = gcudai_array(y);
    float buf[GCUDAI_PIECE];
    for (int64_t r = 0; gcudai_is_float(y->type) && r < gcuda_nrows(y); ++r) {
        for (int64_t i = 0; i < y->ne[0]; i += GCUDAI_PIECE) {
            const int64_t m = GCUDAI_MIN(y->ne[0] - i, GCUDAI_PIECE);
            gcudai_load(y->type, gcudai_row(&a, r) + (size_t) i * y->nb[0], y->nb[0], m, buf);
            for (int64_t j = 0; j < m; ++j) {
                if (!(buf[j] - buf[j] == 0.0f)) {
                    return gcudai_node_fail(GCUDA_STATUS_INVALID_DATA, y, "element %lld of row %lld is %g", (long long) (i + j), (long long) r, (double) buf[j]);
                }
            }
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

// The graph was prepared with the same number of threads.
static gcuda_status gcudai_cpu_run(const struct gcuda_cgraph * graph, const struct gcudai_cpu_setup * s) {
    struct gcudai_run run;
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    GCUDAI_ZERO(run);
    if (!gcudai_mutex_init(&run.lock)) {
        return gcudai_fail(GCUDA_STATUS_FAILED, "graph_compute: the system gives no mutex");
    }
    for (int i = 0; i < graph->n_nodes && st == GCUDA_STATUS_SUCCESS; ++i) {
        const struct gcuda_tensor * y = graph->nodes[i];
        if (!gcudai_is_skipped(y)) {
            st = gcudai_cpu_run_node(y, s, &run);
            if (st == GCUDA_STATUS_SUCCESS && s->check_finite) {
                st = gcudai_cpu_check_finite(y);
            }
        }
    }
    gcudai_mutex_destroy(&run.lock);
    if (st == GCUDA_STATUS_SUCCESS && run.bad_node != NULL) { // the graph went on, as on a device
        st = gcudai_node_fail(GCUDA_STATUS_INVALID_DATA, run.bad_node, "index %lld at position %lld is out of range [0, %lld)",
                              (long long) run.bad_value, (long long) run.bad_position, (long long) run.bad_limit);
    }
    return st;
}

static int gcudai_default_n_threads(void) {
    const int n = gcudai_cpu_count();
    return n < GCUDA_DEFAULT_N_THREADS ? n : GCUDA_DEFAULT_N_THREADS;
}

// ---- without a backend ----

struct gcuda_cplan gcuda_graph_plan(const struct gcuda_cgraph * graph, int n_threads, struct gcuda_threadpool * threadpool) {
    struct gcuda_cplan plan;
    GCUDAI_ZERO(plan);
    plan.threadpool = threadpool;
    plan.n_threads = n_threads > 0 ? n_threads : threadpool ? gcuda_threadpool_get_n_threads(threadpool) : gcudai_default_n_threads();
    plan.n_threads = GCUDAI_MIN(plan.n_threads, GCUDA_MAX_N_THREADS);
    size_t work = 0;
    if (graph == NULL) {
        gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "graph_plan: graph is NULL");
    } else if (gcudai_cpu_prepare(graph, plan.n_threads, &work) == GCUDA_STATUS_SUCCESS && work > 0) {
        plan.work_size = work + GCUDAI_ALIGN; // work_data may be unaligned
    }
    return plan;
}

gcuda_status gcuda_graph_compute(struct gcuda_cgraph * graph, struct gcuda_cplan * cplan) {
    struct gcudai_cpu_setup s;
    size_t work = 0;
    if (graph == NULL || cplan == NULL || cplan->n_threads < 1 || cplan->n_threads > GCUDA_MAX_N_THREADS) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "graph_compute: graph or plan is NULL, or %d threads", cplan ? cplan->n_threads : 0);
    }
    GCUDAI_TRY(gcudai_cpu_prepare(graph, cplan->n_threads, &work));
    if (work > 0 && (cplan->work_data == NULL || cplan->work_size < work + GCUDAI_ALIGN)) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "graph_compute: %llu bytes of work memory wanted, %llu given", (unsigned long long) (work + GCUDAI_ALIGN),
                           (unsigned long long) (cplan->work_data ? cplan->work_size : 0));
    }
    GCUDAI_ZERO(s);
    s.n_threads = cplan->n_threads;
    s.pool = cplan->threadpool;
    s.work = work > 0 ? (char *) (((uintptr_t) cplan->work_data + GCUDAI_ALIGN - 1) & ~(uintptr_t) (GCUDAI_ALIGN - 1)) : NULL;
    s.work_size = work;
    s.abort = cplan->abort_callback;
    s.abort_data = cplan->abort_callback_data;
    s.check_finite = cplan->check_finite;
    struct gcuda_threadpool * own = NULL;
    if (s.pool == NULL && s.n_threads > 1) {
        const struct gcuda_threadpool_params params = gcuda_threadpool_params_default(s.n_threads);
        own = s.pool = gcuda_threadpool_new(&params);
        if (own == NULL) {
            return GCUDA_STATUS_ALLOC_FAILED;
        }
    }
    const gcuda_status st = gcudai_cpu_run(graph, &s);
    gcuda_threadpool_free(own);
    return st;
}

gcuda_status gcuda_graph_compute_with_ctx(struct gcuda_context * ctx, struct gcuda_cgraph * graph, int n_threads) {
    struct gcuda_cplan plan = gcuda_graph_plan(graph, n_threads, NULL);
    if (plan.work_size > 0) {
        plan.work_data = (uint8_t *) gcuda_new_buffer(ctx, plan.work_size);
        if (plan.work_data == NULL) {
            return GCUDA_STATUS_ALLOC_FAILED;
        }
    }
    return gcuda_graph_compute(graph, &plan);
}

// ---- buffers: plain host memory ----

static const char * gcudai_cpu_name(void) { return "CPU"; }
static const char * gcudai_cpu_buft_name(gcuda_backend_buffer_type_t buft) { return buft ? gcudai_cpu_name() : ""; }
static size_t gcudai_cpu_buft_alignment(gcuda_backend_buffer_type_t buft) { return buft ? 32 : 1; }
static bool gcudai_cpu_buft_is_host(gcuda_backend_buffer_type_t buft) { return buft != NULL; }

static void gcudai_cpu_buffer_free(gcuda_backend_buffer_t buffer) { gcudai_free(buffer->context); }
static void * gcudai_cpu_buffer_base(gcuda_backend_buffer_t buffer) { return buffer->context; }

static gcuda_status gcudai_cpu_buffer_memset(gcuda_backend_buffer_t buffer, struct gcuda_tensor * tensor, uint8_t value, size_t offset, size_t size) {
    (void) buffer;
    memset((char *) tensor->data + offset, value, size);
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_cpu_buffer_set(gcuda_backend_buffer_t buffer, struct gcuda_tensor * tensor, const void * data, size_t offset, size_t size) {
    (void) buffer;
    memmove((char *) tensor->data + offset, data, size); // data may be the tensor's own memory
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_cpu_buffer_get(gcuda_backend_buffer_t buffer, const struct gcuda_tensor * tensor, void * data, size_t offset, size_t size) {
    (void) buffer;
    memmove(data, (const char *) tensor->data + offset, size);
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_cpu_buffer_copy(gcuda_backend_buffer_t buffer, const struct gcuda_tensor * src, struct gcuda_tensor * dst) {
    (void) buffer;
    if (!gcudai_in_host_memory(src)) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    memmove(dst->data, src->data, gcuda_nbytes(src));
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_cpu_buffer_clear(gcuda_backend_buffer_t buffer, uint8_t value) {
    memset(buffer->context, value, buffer->size);
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_backend_buffer_t gcudai_cpu_buffer_new(void * memory, size_t size, bool is_owned) {
    struct gcuda_backend_buffer_i iface;
    GCUDAI_ZERO(iface);
    iface.free_buffer = is_owned ? gcudai_cpu_buffer_free : NULL;
    iface.get_base = gcudai_cpu_buffer_base;
    iface.memset_tensor = gcudai_cpu_buffer_memset;
    iface.set_tensor = gcudai_cpu_buffer_set;
    iface.get_tensor = gcudai_cpu_buffer_get;
    iface.cpy_tensor = gcudai_cpu_buffer_copy;
    iface.clear = gcudai_cpu_buffer_clear;
    return gcuda_backend_buffer_init(gcuda_backend_cpu_buffer_type(), &iface, memory, size);
}

static gcuda_status gcudai_cpu_buft_alloc(gcuda_backend_buffer_type_t buft, size_t size, gcuda_backend_buffer_t * buffer) {
    void * memory = size > 0 ? gcudai_alloc(size) : NULL;
    (void) buft;
    *buffer = NULL;
    if (size > 0 && memory == NULL) {
        return GCUDA_STATUS_ALLOC_FAILED;
    }
    *buffer = gcudai_cpu_buffer_new(memory, size, true);
    if (*buffer == NULL) {
        gcudai_free(memory);
        return GCUDA_STATUS_ALLOC_FAILED;
    }
    return GCUDA_STATUS_SUCCESS;
}

gcuda_backend_buffer_t gcuda_backend_cpu_buffer_from_ptr(void * ptr, size_t size) {
    if ((ptr == NULL && size > 0) || (uintptr_t) ptr % 32 != 0) {
        gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "cpu_buffer_from_ptr: %p is NULL or not aligned to 32 bytes", ptr);
        return NULL;
    }
    return gcudai_cpu_buffer_new(ptr, size, false);
}

// ---- the backend ----

struct gcudai_cpu {
    struct gcuda_backend backend; // first: a gcuda_backend_t is one of these
    int n_threads;                // <= 0: the pool's, or the default
    struct gcuda_threadpool * user_pool;
    struct gcuda_threadpool * own_pool; // made when first needed
    char * work;
    size_t work_size;
    gcuda_abort_callback abort;
    void * abort_data;
    bool check_finite;
};

static const char * gcudai_cpu_backend_name(gcuda_backend_t backend) { return backend ? gcudai_cpu_name() : ""; }

static void gcudai_cpu_backend_free(gcuda_backend_t backend) {
    struct gcudai_cpu * cpu = (struct gcudai_cpu *) backend;
    gcuda_threadpool_free(cpu->own_pool);
    gcudai_free(cpu->work);
    gcudai_free(cpu);
}

static int gcudai_cpu_n_threads(const struct gcudai_cpu * cpu) {
    return cpu->n_threads > 0 ? cpu->n_threads : cpu->user_pool ? gcuda_threadpool_get_n_threads(cpu->user_pool) : gcudai_default_n_threads();
}

// The pool to use for n threads; its own one is remade when it is too small.
static gcuda_status gcudai_cpu_pool(struct gcudai_cpu * cpu, int n_threads, struct gcuda_threadpool ** pool) {
    *pool = cpu->user_pool;
    if (cpu->user_pool != NULL || n_threads == 1) {
        return GCUDA_STATUS_SUCCESS;
    }
    if (cpu->own_pool == NULL || gcuda_threadpool_get_n_threads(cpu->own_pool) < n_threads) {
        const struct gcuda_threadpool_params params = gcuda_threadpool_params_default(n_threads);
        gcuda_threadpool_free(cpu->own_pool);
        cpu->own_pool = gcuda_threadpool_new(&params);
    }
    *pool = cpu->own_pool;
    return *pool ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_ALLOC_FAILED;
}

static gcuda_status gcudai_cpu_compute(struct gcudai_cpu * cpu, const struct gcuda_cgraph * graph, int n_threads, char * work, size_t work_size) {
    struct gcudai_cpu_setup s;
    GCUDAI_ZERO(s);
    s.n_threads = n_threads;
    s.work = work;
    s.work_size = work_size;
    s.abort = cpu->abort;
    s.abort_data = cpu->abort_data;
    s.check_finite = cpu->check_finite;
    GCUDAI_TRY(gcudai_cpu_pool(cpu, n_threads, &s.pool));
    return gcudai_cpu_run(graph, &s);
}

static gcuda_status gcudai_cpu_graph_compute(gcuda_backend_t backend, struct gcuda_cgraph * graph) {
    struct gcudai_cpu * cpu = (struct gcudai_cpu *) backend;
    const int n_threads = gcudai_cpu_n_threads(cpu);
    size_t work = 0;
    GCUDAI_TRY(gcudai_cpu_prepare(graph, n_threads, &work));
    if (work > cpu->work_size) {
        gcudai_free(cpu->work);
        cpu->work = (char *) gcudai_alloc(work);
        cpu->work_size = cpu->work ? work : 0;
        if (cpu->work == NULL) {
            return GCUDA_STATUS_ALLOC_FAILED;
        }
    }
    return gcudai_cpu_compute(cpu, graph, n_threads, cpu->work, cpu->work_size);
}

struct gcudai_cpu_plan {
    struct gcuda_cgraph graph; // nodes: a copy behind this struct
    int n_threads;
    char * work;
    size_t work_size;
};

static void gcudai_cpu_plan_free(gcuda_backend_t backend, gcuda_backend_graph_plan_t plan) {
    (void) backend;
    gcudai_free(((struct gcudai_cpu_plan *) plan)->work);
    gcudai_free(plan);
}

static gcuda_status gcudai_cpu_plan_create(gcuda_backend_t backend, const struct gcuda_cgraph * graph, gcuda_backend_graph_plan_t * plan) {
    const struct gcudai_cpu * cpu = (const struct gcudai_cpu *) backend;
    const size_t head = gcudai_pad(sizeof(struct gcudai_cpu_plan), GCUDAI_ALIGN), n = (size_t) graph->n_nodes * sizeof(void *);
    size_t work = 0;
    *plan = NULL;
    GCUDAI_TRY(gcudai_cpu_prepare(graph, gcudai_cpu_n_threads(cpu), &work));
    struct gcudai_cpu_plan * p = (struct gcudai_cpu_plan *) gcudai_calloc(1, head + n);
    if (p == NULL) {
        return GCUDA_STATUS_ALLOC_FAILED;
    }
    p->n_threads = gcudai_cpu_n_threads(cpu);
    p->graph.nodes = (struct gcuda_tensor **) (void *) ((char *) p + head);
    p->graph.n_nodes = graph->n_nodes;
    if (n > 0) {
        memcpy(p->graph.nodes, graph->nodes, n);
    }
    p->work_size = work;
    p->work = work > 0 ? (char *) gcudai_alloc(work) : NULL;
    if (work > 0 && p->work == NULL) {
        gcudai_free(p);
        return GCUDA_STATUS_ALLOC_FAILED;
    }
    *plan = p;
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gcudai_cpu_plan_compute(gcuda_backend_t backend, gcuda_backend_graph_plan_t plan) {
    struct gcudai_cpu_plan * p = (struct gcudai_cpu_plan *) plan;
    size_t work = 0; // checked again: the nodes are the caller's
    GCUDAI_TRY(gcudai_cpu_prepare(&p->graph, p->n_threads, &work));
    if (work > p->work_size) {
        return gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "graph_plan_compute: the graph has changed since the plan was made");
    }
    return gcudai_cpu_compute((struct gcudai_cpu *) backend, &p->graph, p->n_threads, p->work, p->work_size);
}

static const uint8_t gcudai_cpu_guid[16] = { 0x67, 0x63, 0x75, 0x64, 0x61, 0x2d, 0x63, 0x70, 0x75, 0x2d, 0x72, 0x65, 0x66, 0x2d, 0x30, 0x31 };

gcuda_backend_t gcuda_backend_cpu_init(void) {
    struct gcudai_cpu * cpu = (struct gcudai_cpu *) gcudai_calloc(1, sizeof(*cpu));
    if (cpu == NULL) {
        return NULL;
    }
    memcpy(cpu->backend.guid, gcudai_cpu_guid, sizeof(gcudai_cpu_guid));
    cpu->backend.device = gcuda_backend_reg_dev_get(gcuda_backend_cpu_reg(), 0);
    cpu->backend.iface.get_name = gcudai_cpu_backend_name;
    cpu->backend.iface.free = gcudai_cpu_backend_free;
    cpu->backend.iface.graph_plan_create = gcudai_cpu_plan_create;
    cpu->backend.iface.graph_plan_free = gcudai_cpu_plan_free;
    cpu->backend.iface.graph_plan_compute = gcudai_cpu_plan_compute;
    cpu->backend.iface.graph_compute = gcudai_cpu_graph_compute;
    return &cpu->backend;
}

bool gcuda_backend_is_cpu(gcuda_backend_t backend) { return backend != NULL && memcmp(backend->guid, gcudai_cpu_guid, sizeof(gcudai_cpu_guid)) == 0; }

static struct gcudai_cpu * gcudai_cpu_of(gcuda_backend_t backend, const char * what) {
    if (!gcuda_backend_is_cpu(backend)) {
        gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "%s: backend '%s' is not the CPU", what, gcuda_backend_name(backend));
        return NULL;
    }
    return (struct gcudai_cpu *) backend;
}

gcuda_status gcuda_backend_cpu_set_n_threads(gcuda_backend_t backend, int n_threads) {
    struct gcudai_cpu * cpu = gcudai_cpu_of(backend, "cpu_set_n_threads");
    if (cpu == NULL || n_threads > GCUDA_MAX_N_THREADS) {
        return cpu == NULL ? GCUDA_STATUS_INVALID_ARGUMENT : gcudai_fail(GCUDA_STATUS_INVALID_ARGUMENT, "cpu_set_n_threads: %d, at most %d", n_threads, GCUDA_MAX_N_THREADS);
    }
    cpu->n_threads = n_threads;
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status gcuda_backend_cpu_set_threadpool(gcuda_backend_t backend, struct gcuda_threadpool * threadpool) {
    struct gcudai_cpu * cpu = gcudai_cpu_of(backend, "cpu_set_threadpool");
    if (cpu == NULL) {
        return GCUDA_STATUS_INVALID_ARGUMENT;
    }
    if (cpu->user_pool != NULL && cpu->user_pool != threadpool) {
        gcuda_threadpool_pause(cpu->user_pool);
    }
    cpu->user_pool = threadpool;
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status gcuda_backend_cpu_set_abort_callback(gcuda_backend_t backend, gcuda_abort_callback callback, void * data) {
    struct gcudai_cpu * cpu = gcudai_cpu_of(backend, "cpu_set_abort_callback");
    if (cpu == NULL) {
        return GCUDA_STATUS_INVALID_ARGUMENT;
    }
    cpu->abort = callback;
    cpu->abort_data = data;
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status gcuda_backend_cpu_set_check_finite(gcuda_backend_t backend, bool check) {
    struct gcudai_cpu * cpu = gcudai_cpu_of(backend, "cpu_set_check_finite");
    if (cpu == NULL) {
        return GCUDA_STATUS_INVALID_ARGUMENT;
    }
    cpu->check_finite = check;
    return GCUDA_STATUS_SUCCESS;
}

// ---- device and registry entry: constants in all but type, because the interfaces take plain pointers ----

static const char * gcudai_cpu_dev_name(gcuda_backend_dev_t dev) { return dev ? gcudai_cpu_name() : ""; }

static const char * gcudai_cpu_dev_description(gcuda_backend_dev_t dev) {
    (void) dev;
    return gcudai_cpu_has(GCUDAI_CPU_AVX512)  ? "CPU with AVX-512"
           : gcudai_cpu_has(GCUDAI_CPU_AVX2)  ? "CPU with AVX2"
           : gcudai_cpu_has(GCUDAI_CPU_NEON)  ? "CPU with NEON"
                                              : "CPU";
}

static gcuda_status gcudai_cpu_dev_memory(gcuda_backend_dev_t dev, size_t * free, size_t * total) {
    (void) dev;
    gcudai_memory_query(free, total);
    return GCUDA_STATUS_SUCCESS;
}

static enum gcuda_backend_dev_type gcudai_cpu_dev_type(gcuda_backend_dev_t dev) {
    (void) dev;
    return GCUDA_BACKEND_DEVICE_TYPE_CPU;
}

static gcuda_status gcudai_cpu_dev_props(gcuda_backend_dev_t dev, struct gcuda_backend_dev_props * props) {
    props->name = gcudai_cpu_dev_name(dev);
    props->description = gcudai_cpu_dev_description(dev);
    props->type = GCUDA_BACKEND_DEVICE_TYPE_CPU;
    props->caps.buffer_from_host_ptr = true;
    return gcudai_cpu_dev_memory(dev, &props->memory_free, &props->memory_total);
}

static gcuda_status gcudai_cpu_dev_init(gcuda_backend_dev_t dev, const char * params, gcuda_backend_t * backend) {
    (void) dev;
    (void) params;
    *backend = gcuda_backend_cpu_init();
    return *backend ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_ALLOC_FAILED;
}

static gcuda_backend_buffer_type_t gcudai_cpu_dev_buft(gcuda_backend_dev_t dev) {
    (void) dev;
    return gcuda_backend_cpu_buffer_type();
}

static gcuda_status gcudai_cpu_dev_from_ptr(gcuda_backend_dev_t dev, void * ptr, size_t size, size_t max_tensor_size, gcuda_backend_buffer_t * buffer) {
    (void) dev;
    (void) max_tensor_size;
    *buffer = gcuda_backend_cpu_buffer_from_ptr(ptr, size);
    return *buffer ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_INVALID_ARGUMENT;
}

static gcuda_status gcudai_cpu_dev_supports_op(gcuda_backend_dev_t dev, const struct gcuda_tensor * op) {
    (void) dev;
    return gcudai_cpu_supports(op);
}

static bool gcudai_cpu_dev_supports_buft(gcuda_backend_dev_t dev, gcuda_backend_buffer_type_t buft) {
    (void) dev;
    return gcuda_backend_buft_is_host(buft);
}

static const char * gcudai_cpu_reg_name(gcuda_backend_reg_t reg) { return reg ? gcudai_cpu_name() : ""; }
static size_t gcudai_cpu_reg_count(gcuda_backend_reg_t reg) { return reg ? 1 : 0; }
static gcuda_backend_dev_t gcudai_cpu_reg_device(gcuda_backend_reg_t reg, size_t index);

static struct gcuda_backend_reg gcudai_cpu_registry = { GCUDA_BACKEND_API_VERSION, { gcudai_cpu_reg_name, gcudai_cpu_reg_count, gcudai_cpu_reg_device, NULL }, NULL };
static struct gcuda_backend_device gcudai_cpu_device = {
    { gcudai_cpu_dev_name, gcudai_cpu_dev_description, gcudai_cpu_dev_memory, gcudai_cpu_dev_type, gcudai_cpu_dev_props, gcudai_cpu_dev_init,
      gcudai_cpu_dev_buft, NULL, gcudai_cpu_dev_from_ptr, gcudai_cpu_dev_supports_op, gcudai_cpu_dev_supports_buft, NULL, NULL, NULL, NULL, NULL },
    &gcudai_cpu_registry,
    NULL
};
static struct gcuda_backend_buffer_type gcudai_cpu_buffer_type = {
    { gcudai_cpu_buft_name, gcudai_cpu_buft_alloc, gcudai_cpu_buft_alignment, NULL, NULL, gcudai_cpu_buft_is_host }, &gcudai_cpu_device, NULL
};

static gcuda_backend_dev_t gcudai_cpu_reg_device(gcuda_backend_reg_t reg, size_t index) {
    (void) reg;
    (void) index;
    return &gcudai_cpu_device;
}

gcuda_backend_reg_t gcuda_backend_cpu_reg(void) { return &gcudai_cpu_registry; }
gcuda_backend_buffer_type_t gcuda_backend_cpu_buffer_type(void) { return &gcudai_cpu_buffer_type; }

#ifdef __cplusplus
} // extern "C"
#endif

#endif // GCUDA_IMPLEMENTATION_DONE
#endif // GCUDA_IMPLEMENTATION

/*
LICENSE: see the file LICENSE beside this one. MIT, Copyright (c) 2026 The gcuda authors
*/
