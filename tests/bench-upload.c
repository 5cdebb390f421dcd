// bench-upload.c: host memory to a CUDA device, in GB/s (10^9 bytes): a plain copy, a page-locked one, and the
// uploader, from ordinary memory and from a mapped file. Built with `make build/cuda/bench-upload` where nvcc and a GPU
// are.
//
//   bench-upload [--mib N] [--sweep] [--file PATH] [--want RATIO]
//     N: 4096; a sweep tries threads, slots and sizes of tensors; PATH: where the mapped file is made (and removed),
//     ./bench-upload.tmp; fails when the uploader is not RATIO times as fast as cudaMemcpy from memory and from the
//     file
//
// Contains the implementation, to switch reading ahead off. Every figure is the median of 5; data is compared.
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"

#include <sys/mman.h>

enum { N_RUNS = 5 };

static size_t n_bytes = (size_t) 4 << 30;

static void die(const char * what) {
    fprintf(stderr, "bench-upload: %s: %s\n", what, gcuda_last_error());
    exit(1);
}
static void cu(cudaError_t err, const char * what) {
    if (err != cudaSuccess) {
        fprintf(stderr, "bench-upload: %s: %s\n", what, cudaGetErrorString(err));
        exit(1);
    }
}

static int by_size(const void * a, const void * b) {
    const double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}
static double median(double * t) {
    qsort(t, N_RUNS, sizeof(*t), by_size);
    return t[N_RUNS / 2];
}
static double seconds(void) { return 1e-6 * (double) gcudai_time_us(); }
static double rate(double * t) { return 1e-9 * (double) n_bytes / median(t); }

static unsigned char * ordinary(void) {
    unsigned char * p = (unsigned char *) malloc(n_bytes);
    if (p == NULL) { die("no host memory"); }
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i + 8 <= n_bytes; i += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(p + i, &x, 8);
    }
    return p;
}

static unsigned char * mapped(const char * path, const unsigned char * data) {
    FILE * f = fopen(path, "w+b");
    if (f == NULL) { die("cannot make the file to map"); }
    unlink(path); // goes with the program
    for (size_t at = 0; at < n_bytes; at += (size_t) 16 << 20) {
        if (fwrite(data + at, 1, (size_t) 16 << 20, f) != (size_t) 16 << 20) { die("cannot write the file to map"); }
    }
    fflush(f);
    void * p = mmap(NULL, n_bytes, PROT_READ, MAP_PRIVATE, fileno(f), 0);
    if (p == MAP_FAILED) { die("cannot map the file"); }
    fclose(f);
    return (unsigned char *) p;
}
// As just mapped: page tables are empty, the file's pages are in memory.
static void map_again(unsigned char * p) { (void) madvise(p, n_bytes, MADV_DONTNEED); }

static void check(struct gcuda_tensor * t, const unsigned char * data) {
    const size_t part = (size_t) 1 << 20;
    unsigned char * got = (unsigned char *) malloc(part);
    for (size_t at = 0; at < n_bytes; at += 97 * part) {
        if (gcuda_backend_tensor_get(t, got, at, part) != GCUDA_STATUS_SUCCESS || memcmp(got, data + at, part) != 0) {
            die("data differs");
        }
    }
    if (gcuda_backend_tensor_memset(t, 0, 0, n_bytes) != GCUDA_STATUS_SUCCESS) { die("memset"); }
    free(got);
}

static double plain(struct gcuda_tensor * t, unsigned char * data, bool is_mapped) {
    double times[N_RUNS];
    for (int i = 0; i < N_RUNS; ++i) {
        if (is_mapped) { map_again(data); }
        const double start = seconds();
        cu(cudaMemcpy(t->data, data, n_bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
        times[i] = seconds() - start;
    }
    check(t, data);
    return rate(times);
}

static double page_locked(struct gcuda_tensor * t) {
    double times[N_RUNS];
    const size_t part = (size_t) 1 << 30 < n_bytes ? (size_t) 1 << 30 : n_bytes;
    void * p = NULL;
    cu(cudaHostAlloc(&p, part, cudaHostAllocPortable), "cudaHostAlloc");
    memset(p, 1, part);
    for (int i = 0; i < N_RUNS; ++i) {
        const double start = seconds();
        for (size_t at = 0; at + part <= n_bytes; at += part) {
            cu(cudaMemcpyAsync((char *) t->data + at, p, part, cudaMemcpyHostToDevice, cudaStreamPerThread), "copy");
        }
        cu(cudaStreamSynchronize(cudaStreamPerThread), "wait");
        times[i] = seconds() - start;
    }
    cu(cudaFreeHost(p), "cudaFreeHost");
    return rate(times);
}

struct way { // 0: the default
    int n_slots, slot_mib, n_threads;
    size_t job_bytes; // of each upload; 0: all at once
    bool no_ahead;
};

static double ours(struct gcuda_tensor * t, unsigned char * data, bool is_mapped, bool is_download, struct way w) {
    double times[N_RUNS];
    struct gcuda_cuda_uploader_params p;
    memset(&p, 0, sizeof(p));
    p.n_slots = w.n_slots;
    p.slot_bytes = (size_t) w.slot_mib << 20;
    p.n_threads = w.n_threads;
    struct gcuda_cuda_uploader * up = gcuda_cuda_uploader_new(&p);
    if (up == NULL) { die("no uploader"); }
    if (w.no_ahead) { up->ahead_bytes = 0; }
    const size_t part = w.job_bytes ? w.job_bytes : n_bytes;
    for (int i = 0; i < N_RUNS; ++i) {
        if (is_mapped) { map_again(data); }
        const double start = seconds();
        gcuda_status st = GCUDA_STATUS_SUCCESS;
        for (size_t at = 0; at < n_bytes && st == GCUDA_STATUS_SUCCESS; at += part) {
            st = is_download ? gcuda_cuda_download(up, t, data + at, at, part, NULL)
                             : gcuda_cuda_upload(up, t, data + at, at, part, NULL);
        }
        if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_cuda_upload_wait(up, 0); }
        if (st != GCUDA_STATUS_SUCCESS) { die("upload"); }
        times[i] = seconds() - start;
    }
    gcuda_cuda_uploader_free(up);
    if (!is_download) { check(t, data); }
    return rate(times);
}

static void sweep(struct gcuda_tensor * t, unsigned char * data, unsigned char * map) {
    static const int threads[] = { 1, 2, 4, 6, 7, 8, 9, 10, 12, 16 }, slots[] = { 2, 3, 4, 8 },
                     mib[] = { 2, 4, 8, 16, 32 };
    static const size_t kib[] = { 16, 64, 256, 1024, 4096, 16384 };
    printf("threads   ordinary     mapped   mapped, no read-ahead   from the device\n");
    for (size_t i = 0; i < sizeof(threads) / sizeof(threads[0]); ++i) {
        struct way a = { 0, 0, threads[i], 0, false }, b = { 0, 0, threads[i], 0, true };
        printf("%7d %10.1f %10.1f %23.1f %17.1f\n", threads[i], ours(t, data, false, false, a),
            ours(t, map, true, false, a), ours(t, map, true, false, b), ours(t, data, false, true, a));
        fflush(stdout);
    }
    printf("slots of MiB   ordinary     mapped\n");
    for (size_t i = 0; i < sizeof(slots) / sizeof(slots[0]); ++i) {
        for (size_t k = 0; k < sizeof(mib) / sizeof(mib[0]); ++k) {
            struct way a = { slots[i], mib[k], 0, 0, false };
            printf("%5d of %3d %10.1f %10.1f\n", slots[i], mib[k], ours(t, data, false, false, a),
                ours(t, map, true, false, a));
            fflush(stdout);
        }
    }
    printf("KiB of each upload   ordinary   from the device\n");
    for (size_t i = 0; i < sizeof(kib) / sizeof(kib[0]); ++i) {
        struct way a = { 0, 0, 0, kib[i] << 10, false };
        printf("%18d %10.1f %17.1f\n", (int) kib[i], ours(t, data, false, false, a), ours(t, data, false, true, a));
        fflush(stdout);
    }
}

int main(int argc, char ** argv) {
    const char * path = "bench-upload.tmp";
    bool is_sweep = false;
    double want = 0.0;
    for (int i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "--sweep") == 0) {
            is_sweep = true;
        } else if (strcmp(argv[i], "--mib") == 0 && i + 1 < argc) {
            n_bytes = (size_t) (atoi(argv[++i]) / 16 * 16) << 20;
        } else if (strcmp(argv[i], "--file") == 0 && i + 1 < argc) {
            path = argv[++i];
        } else if (strcmp(argv[i], "--want") == 0 && i + 1 < argc) {
            want = atof(argv[++i]);
        } else {
            fprintf(stderr, "usage: bench-upload [--mib N] [--sweep] [--file PATH] [--want RATIO]\n");
            return 2;
        }
    }
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    if (backend == NULL) { die("no device"); }
    struct gcuda_init_params params = { 0, NULL, true };
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_tensor * t = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_I8, (int64_t) n_bytes);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_ctx_tensors(ctx, backend);
    if (buffer == NULL) { die("no device memory"); }
    unsigned char * data = ordinary();
    unsigned char * map = mapped(path, data);
    char name[256];
    struct way way = { 0, 0, 0, 0, false };
    gcuda_backend_cuda_get_device_description(0, name, sizeof(name));
    const double pageable = plain(t, data, false), plain_map = plain(t, map, true), locked = page_locked(t);
    const double up = ours(t, data, false, false, way), up_map = ours(t, map, true, false, way);
    printf("%s, %d processors, %.1f GiB\n", name, gcudai_cpu_count(), (double) n_bytes / (1 << 30));
    printf("to the device, GB/s     ordinary memory   mapped file   page-locked\n");
    printf("cudaMemcpy(Async)       %15.1f %13.1f %13.1f\n", pageable, plain_map, locked);
    printf("uploader                %15.1f %13.1f\n", up, up_map);
    printf("ratio                   %15.1f %13.1f\n", up / pageable, up_map / plain_map);
    printf("from the device: uploader to ordinary memory %.1f GB/s\n", ours(t, data, false, true, way));
    if (is_sweep) { sweep(t, data, map); }
    munmap(map, n_bytes);
    free(data);
    gcuda_backend_buffer_free(buffer);
    gcuda_free(ctx);
    gcuda_backend_free(backend);
    if (up < want * pageable || up_map < want * plain_map) {
        printf("FAILED: wanted a ratio of %.1f\n", want);
        return 1;
    }
    return 0;
}
