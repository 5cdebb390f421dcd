// Trains a small classifier on handwritten digits, through graphs alone: forward pass, cross entropy, backward graph,
// AdamW, mini-batches. Then it saves the weights as F16 and as Q8_0, loads each file again and counts what it still
// gets right. Every fifth of the 1797 digits is kept for the test; 60 epochs that give less than 97 % of them are a
// failure.
//
//   cc -O2 -I. examples/digits.c -o digits -pthread -lm -ldl && ./digits
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"

#include "digits_data.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <io.h>
#define stdout_is_terminal() (_isatty(_fileno(stdout)) != 0)
#else
#include <unistd.h>
#define stdout_is_terminal() (isatty(STDOUT_FILENO) != 0)
#endif

enum {
    N_PIXELS = 64,
    N_CLASSES = 10,
    N_LAYERS = 3,
    N_PARAMS = 2 * N_LAYERS,
    N_TEST = (DIGITS_COUNT + 4) / 5,
    N_TRAIN = DIGITS_COUNT - N_TEST,
    BATCH = 32,
    DEFAULT_EPOCHS = 60,
    MAX_EPOCHS = 10000
};
// rows are multiples of 32, so that each is a whole number of Q8_0 blocks
static const int64_t layer_size[N_LAYERS + 1] = { N_PIXELS, 256, 64, N_CLASSES };
static const double wanted_accuracy = 0.97;

struct options {
    int epochs, threads;
    unsigned long long seed;
    const char * backend; // NULL: the best there is
    const char * save;    // file name; .f16 and .q8_0 are appended
    const char * load;    // do not train: test the weights in this file
};

// ---- errors: the library's thread-local message serves the example too ----
#define TRY(call)                                                      \
    do {                                                               \
        const gcuda_status try_status = (call);                        \
        if (try_status != GCUDA_STATUS_SUCCESS) { return try_status; } \
    } while (0)

static gcuda_status fail(gcuda_status status, const char * fmt, ...) {
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return gcuda_set_last_error(status, text);
}

// For functions that return NULL after they have set the message.
static gcuda_status made(const void * object) { return object ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_FAILED; }

// ---- random numbers: splitmix64, the same on every machine ----
static unsigned long long random_bits(unsigned long long * state) {
    unsigned long long z = (*state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}
static float random_unit(unsigned long long * state) { return (float) (random_bits(state) >> 40) / 16777216.0f; }
static int random_below(unsigned long long * state, int n) {
    return (int) (random_bits(state) % (unsigned long long) n);
}

// ---- data ----
struct digit {
    float pixel[N_PIXELS]; // 0 to 1
    int label;
};
struct data {
    struct digit train[N_TRAIN], test[N_TEST];
};

static struct digit parse_digit(const char * text) { // "7:" and 64 symbols 0..9 A..G
    struct digit d;
    d.label = text[0] - '0';
    for (int i = 0; i < N_PIXELS; ++i) {
        const char c = text[2 + i];
        d.pixel[i] = (float) (c <= '9' ? c - '0' : c - 'A' + 10) / 16.0f;
    }
    return d;
}

static void split_data(struct data * data) {
    int n_train = 0, n_test = 0;
    for (int i = 0; i < DIGITS_COUNT; ++i) {
        const struct digit d = parse_digit(digits_data[i]);
        if (i % 5 == 0) {
            data->test[n_test++] = d;
        } else {
            data->train[n_train++] = d;
        }
    }
}

// Half of the training digits are moved by up to one pixel each time they are seen: more writers for free.
static void copy_shifted(const struct digit * d, unsigned long long * seed, float * out) {
    const bool move = random_below(seed, 2) == 0;
    const int dx = move ? random_below(seed, 3) - 1 : 0, dy = move ? random_below(seed, 3) - 1 : 0;
    for (int y = 0; y < 8; ++y) {
        for (int x = 0; x < 8; ++x) {
            const int sx = x + dx, sy = y + dy;
            out[8 * y + x] = sx >= 0 && sx < 8 && sy >= 0 && sy < 8 ? d->pixel[8 * sy + sx] : 0.0f;
        }
    }
}

// ---- model: the tensors that are learned, in a buffer of the backend ----
struct model {
    struct gcuda_context * ctx;                               // describes them
    gcuda_backend_buffer_t buffer;                            // holds their numbers
    enum gcuda_type type;                                     // of the weights; biases are F32
    struct gcuda_tensor * param[N_PARAMS];                    // weight 1, bias 1, weight 2, ...
    struct gcuda_tensor *mean[N_PARAMS], *variance[N_PARAMS]; // of the gradients, for AdamW; NULL unless trainable
};

static void model_free(struct model * m) {
    gcuda_backend_buffer_free(m->buffer);
    gcuda_free(m->ctx);
    memset(m, 0, sizeof *m);
}

static struct gcuda_tensor * new_param(struct model * m, int i) {
    const int64_t n_in = layer_size[i / 2], n_out = layer_size[i / 2 + 1];
    if (i % 2 == 1) {
        return gcuda_format_name(gcuda_new_tensor_1d(m->ctx, GCUDA_TYPE_F32, n_out), "bias %d", i / 2 + 1);
    }
    return gcuda_format_name(gcuda_new_tensor_2d(m->ctx, m->type, n_in, n_out), "weight %d", i / 2 + 1);
}

static gcuda_status model_init(struct model * m, gcuda_backend_t backend, enum gcuda_type type, bool trainable) {
    memset(m, 0, sizeof *m);
    m->type = type;
    const struct gcuda_init_params params = { 0, NULL, true }; // no_alloc: the data lives in the backend's buffer
    TRY(made(m->ctx = gcuda_init(params)));
    for (int i = 0; i < N_PARAMS; ++i) {
        TRY(made(m->param[i] = new_param(m, i)));
        if (!trainable) { continue; }
        TRY(gcuda_set_param(m->param[i]));
        TRY(made(m->mean[i] = gcuda_dup_tensor(m->ctx, m->param[i])));
        TRY(made(m->variance[i] = gcuda_dup_tensor(m->ctx, m->param[i])));
    }
    TRY(made(m->buffer = gcuda_backend_alloc_ctx_tensors(m->ctx, backend)));
    return gcuda_backend_buffer_clear(m->buffer, 0);
}

// Weights uniform with variance 2 / inputs (He et al. 2015, arXiv:1502.01852), biases 0.
static gcuda_status model_randomise(struct model * m, unsigned long long * seed) {
    for (int i = 0; i < N_PARAMS; i += 2) {
        const size_t n = (size_t) gcuda_nelements(m->param[i]);
        const float limit = sqrtf(6.0f / (float) layer_size[i / 2]);
        float * w = (float *) malloc(n * sizeof *w);
        if (w == NULL) { return fail(GCUDA_STATUS_ALLOC_FAILED, "no memory for %zu weights", n); }
        for (size_t k = 0; k < n; ++k) { w[k] = limit * (2.0f * random_unit(seed) - 1.0f); }
        const gcuda_status st = gcuda_backend_tensor_set(m->param[i], w, 0, n * sizeof *w);
        free(w);
        TRY(st);
    }
    return GCUDA_STATUS_SUCCESS;
}

// ---- network: a graph over the model for a fixed number of images ----
struct network {
    struct gcuda_context * ctx;
    struct gcuda_cgraph * graph;
    gcuda_gallocr_t galloc;
    int n_images;
    struct gcuda_tensor *images, *labels, *logits, *loss;
    struct gcuda_tensor * adamw; // NULL unless it trains
};

static void network_free(struct network * net) {
    gcuda_gallocr_free(net->galloc);
    gcuda_free(net->ctx);
    memset(net, 0, sizeof *net);
}

static struct gcuda_tensor * new_input(struct network * net, int64_t ne0, int64_t ne1, const char * name) {
    struct gcuda_tensor * t = gcuda_set_name(gcuda_new_tensor_2d(net->ctx, GCUDA_TYPE_F32, ne0, ne1), name);
    gcuda_set_input(t);
    return t;
}

// No check in here: a constructor given NULL returns NULL, and gcuda_build_forward_expand reports the first error.
static void build_forward(struct network * net, const struct model * m) {
    net->images = new_input(net, N_PIXELS, net->n_images, "images");
    net->labels = new_input(net, N_CLASSES, net->n_images, "labels");
    struct gcuda_tensor * x = net->images;
    for (int i = 0; i < N_LAYERS; ++i) {
        if (i > 0) { x = gcuda_relu(net->ctx, x); }
        x = gcuda_add(net->ctx, gcuda_mul_mat(net->ctx, m->param[2 * i], x), m->param[2 * i + 1]);
    }
    net->logits = gcuda_set_name(x, "logits");
    net->loss = gcuda_set_name(gcuda_cross_entropy_loss(net->ctx, net->logits, net->labels), "loss");
    gcuda_set_output(net->logits);
    gcuda_set_output(net->loss);
}

static gcuda_status build_training(struct network * net, const struct model * m) {
    TRY(gcuda_set_loss(net->loss));
    TRY(gcuda_build_forward_expand(net->graph, net->loss));
    TRY(gcuda_build_backward_expand(net->ctx, net->graph, NULL));
    net->adamw = new_input(net, 7, 1, "adamw");
    for (int i = 0; i < N_PARAMS; ++i) {
        struct gcuda_tensor * grad = gcuda_graph_get_grad(net->graph, m->param[i]);
        TRY(gcuda_build_forward_expand(
            net->graph, gcuda_opt_step_adamw(net->ctx, m->param[i], grad, m->mean[i], m->variance[i], net->adamw)));
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status network_init(
    struct network * net, gcuda_backend_t backend, const struct model * m, int n_images, bool train) {
    memset(net, 0, sizeof *net);
    net->n_images = n_images;
    const struct gcuda_init_params params = { 0, NULL, true };
    TRY(made(net->ctx = gcuda_init(params)));
    TRY(made(net->graph = gcuda_new_graph_custom(net->ctx, 256, train)));
    build_forward(net, m);
    if (train) {
        TRY(build_training(net, m));
    } else {
        TRY(gcuda_build_forward_expand(net->graph, net->loss));
    }
    TRY(made(net->galloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(backend))));
    TRY(gcuda_gallocr_alloc_graph(net->galloc, net->graph));
    return train ? gcuda_graph_reset(net->graph) : GCUDA_STATUS_SUCCESS;
}

static gcuda_status set_labels(struct network * net, const int * label) {
    float one_hot[BATCH * N_CLASSES];
    for (int i = 0; i < net->n_images; i += BATCH) { // a batch at a time through a small buffer
        const int n = net->n_images - i < BATCH ? net->n_images - i : BATCH;
        memset(one_hot, 0, sizeof one_hot);
        for (int k = 0; k < n; ++k) { one_hot[k * N_CLASSES + label[i + k]] = 1.0f; }
        const size_t row = N_CLASSES * sizeof(float);
        TRY(gcuda_backend_tensor_set(net->labels, one_hot, (size_t) i * row, (size_t) n * row));
    }
    return GCUDA_STATUS_SUCCESS;
}

// ---- training ----
struct trainer {
    unsigned long long seed;
    int step, n_steps;
    double beta1_power, beta2_power;
    int order[N_TRAIN];
};

static void trainer_init(struct trainer * t, unsigned long long seed, int epochs) {
    memset(t, 0, sizeof *t);
    t->seed = seed;
    t->n_steps = epochs * (N_TRAIN / BATCH);
    t->beta1_power = t->beta2_power = 1.0;
    for (int i = 0; i < N_TRAIN; ++i) { t->order[i] = i; }
}

static void shuffle(struct trainer * t) {
    for (int i = N_TRAIN - 1; i > 0; --i) {
        const int k = random_below(&t->seed, i + 1), swap = t->order[i];
        t->order[i] = t->order[k];
        t->order[k] = swap;
    }
}

// The learning rate falls from 0.002 to 0 along half a cosine.
static gcuda_status set_adamw(struct trainer * t, struct network * net) {
    const double beta1 = 0.9, beta2 = 0.999, weight_decay = 0.01;
    const double rate = 0.001 * (1.0 + cos(3.14159265358979 * t->step / t->n_steps));
    t->beta1_power *= beta1;
    t->beta2_power *= beta2;
    const float p[7] = { (float) rate, (float) beta1, (float) beta2, 1e-8f, (float) weight_decay,
        (float) (1.0 / (1.0 - t->beta1_power)), (float) (1.0 / (1.0 - t->beta2_power)) };
    return gcuda_backend_tensor_set(net->adamw, p, 0, sizeof p);
}

static gcuda_status train_step(struct trainer * t, gcuda_backend_t backend, struct network * net,
    const struct data * data, const int * which, float * loss) {
    float images[BATCH * N_PIXELS];
    int labels[BATCH];
    for (int i = 0; i < BATCH; ++i) {
        copy_shifted(&data->train[which[i]], &t->seed, images + i * N_PIXELS);
        labels[i] = data->train[which[i]].label;
    }
    TRY(gcuda_backend_tensor_set(net->images, images, 0, sizeof images));
    TRY(set_labels(net, labels));
    TRY(set_adamw(t, net));
    TRY(gcuda_backend_graph_compute(backend, net->graph));
    t->step++;
    return gcuda_backend_tensor_get(net->loss, loss, 0, sizeof *loss);
}

static gcuda_status train_epoch(
    struct trainer * t, gcuda_backend_t backend, struct network * net, const struct data * data, double * mean_loss) {
    double sum = 0.0;
    shuffle(t);
    for (int i = 0; i < N_TRAIN / BATCH; ++i) { // the rest of the shuffled digits has its turn in another epoch
        float loss;
        TRY(train_step(t, backend, net, data, t->order + i * BATCH, &loss));
        sum += (double) loss;
    }
    *mean_loss = sum / (N_TRAIN / BATCH);
    return GCUDA_STATUS_SUCCESS;
}

// ---- testing ----
struct result {
    double loss, accuracy;
    int predicted[N_TEST];
};

static gcuda_status set_test_data(struct network * net, const struct data * data) {
    int labels[N_TEST];
    for (int i = 0; i < N_TEST; ++i) {
        const size_t row = sizeof data->test[i].pixel;
        TRY(gcuda_backend_tensor_set(net->images, data->test[i].pixel, (size_t) i * row, row));
        labels[i] = data->test[i].label;
    }
    return set_labels(net, labels);
}

static gcuda_status run_test(
    gcuda_backend_t backend, struct network * net, const struct data * data, struct result * r) {
    float loss, logits[N_TEST * N_CLASSES];
    TRY(set_test_data(net, data));
    TRY(gcuda_backend_graph_compute(backend, net->graph));
    TRY(gcuda_backend_tensor_get(net->logits, logits, 0, sizeof logits));
    TRY(gcuda_backend_tensor_get(net->loss, &loss, 0, sizeof loss));
    int n_right = 0;
    for (int i = 0; i < N_TEST; ++i) {
        int best = 0;
        for (int c = 1; c < N_CLASSES; ++c) {
            if (logits[i * N_CLASSES + c] > logits[i * N_CLASSES + best]) { best = c; }
        }
        r->predicted[i] = best;
        n_right += best == data->test[i].label;
    }
    r->loss = (double) loss;
    r->accuracy = (double) n_right / N_TEST;
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status test_model(
    gcuda_backend_t backend, const struct model * m, const struct data * data, struct result * r) {
    struct network net;
    gcuda_status st = network_init(&net, backend, m, N_TEST, false);
    if (st == GCUDA_STATUS_SUCCESS) { st = run_test(backend, &net, data, r); }
    network_free(&net);
    return st;
}

// ---- weight files: header, then per parameter name, type, shape, size and the raw tensor; little endian ----
#define FILE_MAGIC 0x47494447u // "GDIG"
#define FILE_VERSION 1u
enum { NAME_BYTES = 16, HEADER_BYTES = 16, RECORD_BYTES = NAME_BYTES + 4 + 8 + 8 + 8 };

static void put_le(unsigned char * p, int n_bytes, uint64_t v) {
    for (int i = 0; i < n_bytes; ++i) { p[i] = (unsigned char) (v >> (8 * i)); }
}
static uint64_t get_le(const unsigned char * p, int n_bytes) {
    uint64_t v = 0;
    for (int i = 0; i < n_bytes; ++i) { v |= (uint64_t) p[i] << (8 * i); }
    return v;
}

static gcuda_status write_all(FILE * f, const void * p, size_t n) {
    return fwrite(p, 1, n, f) == n ? GCUDA_STATUS_SUCCESS
                                   : fail(GCUDA_STATUS_IO, "writing weights: %s", strerror(errno));
}
static gcuda_status read_all(FILE * f, void * p, size_t n, const char * what) {
    return fread(p, 1, n, f) == n ? GCUDA_STATUS_SUCCESS
                                  : fail(GCUDA_STATUS_IO, "reading weights: the file ends inside %s", what);
}

// Of parameter i of a model with weights of that type; also what a file must say.
static void put_record(unsigned char * p, const struct gcuda_tensor * t, enum gcuda_type type) {
    memset(p, 0, RECORD_BYTES);
    memcpy(p, t->name, strlen(t->name)); // at most 8 bytes
    put_le(p + NAME_BYTES, 4, (uint64_t) type);
    put_le(p + NAME_BYTES + 4, 8, (uint64_t) t->ne[0]);
    put_le(p + NAME_BYTES + 12, 8, (uint64_t) t->ne[1]);
    put_le(p + NAME_BYTES + 20, 8, (uint64_t) gcuda_row_size(type, t->ne[0]) * (uint64_t) t->ne[1]);
}

static gcuda_status write_param(
    FILE * f, const struct gcuda_tensor * t, enum gcuda_type type, float * values, void * converted) {
    unsigned char record[RECORD_BYTES];
    put_record(record, t, type);
    TRY(write_all(f, record, sizeof record));
    TRY(gcuda_backend_tensor_get(t, values, 0, gcuda_nbytes(t)));
    const size_t n = gcuda_quantize_chunk(type, values, converted, 0, t->ne[1], t->ne[0], NULL);
    return n > 0 ? write_all(f, converted, n) : GCUDA_STATUS_FAILED;
}

// Writes an F32 model with weights of the given type.
static gcuda_status save_model(FILE * f, const struct model * m, enum gcuda_type type) {
    unsigned char header[HEADER_BYTES];
    put_le(header, 4, FILE_MAGIC);
    put_le(header + 4, 4, FILE_VERSION);
    put_le(header + 8, 4, (uint64_t) type);
    put_le(header + 12, 4, N_PARAMS);
    TRY(write_all(f, header, sizeof header));
    const size_t n = gcuda_get_max_tensor_size(m->ctx); // F32: no other type needs more
    char * memory = (char *) malloc(2 * n);
    if (memory == NULL) { return fail(GCUDA_STATUS_ALLOC_FAILED, "no memory to save weights"); }
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    for (int i = 0; i < N_PARAMS && st == GCUDA_STATUS_SUCCESS; ++i) {
        st = write_param(f, m->param[i], i % 2 ? GCUDA_TYPE_F32 : type, (float *) memory, memory + n);
    }
    free(memory);
    if (st == GCUDA_STATUS_SUCCESS && fflush(f) != 0) {
        st = fail(GCUDA_STATUS_IO, "writing weights: %s", strerror(errno));
    }
    return st;
}

static gcuda_status read_header(FILE * f, enum gcuda_type * type) {
    unsigned char header[HEADER_BYTES];
    TRY(read_all(f, header, sizeof header, "the header"));
    if (get_le(header, 4) != FILE_MAGIC) { return fail(GCUDA_STATUS_INVALID_DATA, "this is no file of digit weights"); }
    const unsigned version = (unsigned) get_le(header + 4, 4), type_id = (unsigned) get_le(header + 8, 4);
    if (version != FILE_VERSION) {
        return fail(GCUDA_STATUS_INVALID_DATA, "version %u of the file, want %u", version, FILE_VERSION);
    }
    if (type_id != GCUDA_TYPE_F32 && type_id != GCUDA_TYPE_F16 && type_id != GCUDA_TYPE_Q8_0) {
        return fail(GCUDA_STATUS_INVALID_DATA, "weights of type %u, want F32, F16 or Q8_0", type_id);
    }
    if (get_le(header + 12, 4) != N_PARAMS) {
        return fail(GCUDA_STATUS_INVALID_DATA, "%u tensors in the file, want %d", (unsigned) get_le(header + 12, 4),
            (int) N_PARAMS);
    }
    *type = (enum gcuda_type) type_id;
    return GCUDA_STATUS_SUCCESS;
}

// The model says what the file must contain; nothing is believed, so nothing needs to be bounded.
static gcuda_status read_param(FILE * f, struct gcuda_tensor * t) {
    unsigned char record[RECORD_BYTES], want[RECORD_BYTES];
    TRY(read_all(f, record, sizeof record, t->name));
    put_record(want, t, t->type);
    if (memcmp(record, want, sizeof want) != 0) {
        return fail(GCUDA_STATUS_INVALID_DATA, "%s: name, type, shape or size in the file is not %s [%lld, %lld]",
            t->name, gcuda_type_name(t->type), (long long) t->ne[0], (long long) t->ne[1]);
    }
    const size_t n = gcuda_nbytes(t);
    void * data = malloc(n);
    if (data == NULL) { return fail(GCUDA_STATUS_ALLOC_FAILED, "no memory for %zu bytes of %s", n, t->name); }
    gcuda_status st = read_all(f, data, n, t->name);
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_check_row_data(t->type, data, n, NULL); } // no NaN, no infinite scale
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_set(t, data, 0, n); }
    free(data);
    return st;
}

static gcuda_status load_model(FILE * f, struct model * m, gcuda_backend_t backend) {
    enum gcuda_type type = GCUDA_TYPE_F32;
    memset(m, 0, sizeof *m);
    TRY(read_header(f, &type));
    TRY(model_init(m, backend, type, false));
    for (int i = 0; i < N_PARAMS; ++i) { TRY(read_param(f, m->param[i])); }
    return fgetc(f) == EOF ? GCUDA_STATUS_SUCCESS : fail(GCUDA_STATUS_INVALID_DATA, "bytes after the last tensor");
}

static gcuda_status test_file(FILE * f, gcuda_backend_t backend, const struct data * data) {
    struct model m;
    struct result r;
    gcuda_status st = load_model(f, &m, backend);
    if (st == GCUDA_STATUS_SUCCESS) { st = test_model(backend, &m, data, &r); }
    if (st == GCUDA_STATUS_SUCCESS) {
        printf("  %-5s %7ld bytes  %6.2f %% right, loss %.4f\n", gcuda_type_name(m.type), ftell(f), 100.0 * r.accuracy,
            r.loss);
    }
    model_free(&m);
    return st;
}

// Saves with weights of the type, loads the file again and tests it.
static gcuda_status test_saved(const struct model * m, enum gcuda_type type, const char * save, gcuda_backend_t backend,
    const struct data * data) {
    char name[512] = "a temporary file";
    if (save != NULL) { snprintf(name, sizeof name, "%s.%s", save, gcuda_type_name(type)); }
    FILE * f = save != NULL ? fopen(name, "w+b") : tmpfile();
    if (f == NULL) { return fail(GCUDA_STATUS_IO, "cannot create %s: %s", name, strerror(errno)); }
    gcuda_status st = save_model(f, m, type);
    if (st == GCUDA_STATUS_SUCCESS) {
        rewind(f);
        st = test_file(f, backend, data);
    }
    fclose(f);
    return st;
}

// ---- what the terminal shows ----
struct history {
    int n;
    double train_loss[MAX_EPOCHS], test_loss[MAX_EPOCHS];
};

static void show_progress(int epoch, int epochs, double loss, const struct result * r, int64_t elapsed_ms) {
    const bool in_place = stdout_is_terminal();
    const int width = 24, done = epoch * width / epochs;
    if (!in_place && epoch % 5 != 0 && epoch != epochs) { return; }
    printf("%sepoch %3d/%d [", in_place ? "\r" : "", epoch, epochs);
    for (int i = 0; i < width; ++i) { putchar(i < done ? '#' : '.'); }
    printf("] loss %.4f  test %.2f %%  %.1f s%s", loss, 100.0 * r->accuracy, (double) elapsed_ms / 1000.0,
        in_place && epoch < epochs ? " " : "\n");
    fflush(stdout);
}

static void show_curve(const struct history * h) {
    enum { ROWS = 10, COLUMNS = 60 };
    const int n = h->n < COLUMNS ? h->n : COLUMNS;
    double top = -100.0, bottom = 100.0; // natural logarithms
    for (int i = 0; i < h->n; ++i) {
        const double a = log(h->train_loss[i] + 1e-9), b = log(h->test_loss[i] + 1e-9);
        top = fmax(top, fmax(a, b));
        bottom = fmin(bottom, fmin(a, b));
    }
    const double step = fmax((top - bottom) / (ROWS - 1), 1e-9);
    printf("\nloss over the epochs (logarithmic; * training, o test)\n");
    for (int row = 0; row < ROWS; ++row) {
        printf("%8.4f |", exp(top - row * step));
        for (int c = 0; c < n; ++c) {
            const int i = c * h->n / n;
            const bool train = (int) floor((top - log(h->train_loss[i] + 1e-9)) / step + 0.5) == row;
            const bool test = (int) floor((top - log(h->test_loss[i] + 1e-9)) / step + 0.5) == row;
            putchar(train ? '*' : test ? 'o' : ' ');
        }
        putchar('\n');
    }
}

static void show_confusion(const struct data * data, const struct result * r) {
    int count[N_CLASSES][N_CLASSES] = { { 0 } };
    for (int i = 0; i < N_TEST; ++i) { count[data->test[i].label][r->predicted[i]]++; }
    printf("\ntest digits: a row per true class, a column per predicted class\n   ");
    for (int c = 0; c < N_CLASSES; ++c) { printf("%4d", c); }
    for (int t = 0; t < N_CLASSES; ++t) {
        printf("\n%3d", t);
        for (int c = 0; c < N_CLASSES; ++c) {
            if (count[t][c] > 0) {
                printf("%4d", count[t][c]);
            } else {
                printf("   .");
            }
        }
    }
    putchar('\n');
}

enum { N_SHOWN = 4 };

static void show_digits(const struct data * data, const struct result * r) {
    int shown[N_SHOWN], n = 0;
    for (int i = 0; i < N_TEST && n < N_SHOWN / 2; ++i) { // mistakes first
        if (r->predicted[i] != data->test[i].label) { shown[n++] = i; }
    }
    for (int i = 2; i < N_TEST && n < N_SHOWN; ++i) {
        if (r->predicted[i] == data->test[i].label) { shown[n++] = i; }
    }
    putchar('\n');
    for (int y = 0; y < 8; ++y) {
        for (int k = 0; k < n; ++k) {
            for (int x = 0; x < 8; ++x) {
                const char c = " .:-=+*#@"[(int) (data->test[shown[k]].pixel[8 * y + x] * 8.0f)];
                printf("%c%c", c, c);
            }
            printf("%s", k + 1 < n ? "   " : "\n");
        }
    }
    for (int k = 0; k < n; ++k) {
        const int label = data->test[shown[k]].label, predicted = r->predicted[shown[k]];
        printf(label == predicted ? "%d, right          " : "%d, but it is a %d  ", predicted, label);
    }
    putchar('\n');
}

// ---- main ----
static gcuda_status train(const struct options * opt, gcuda_backend_t backend, const struct model * m,
    const struct data * data, struct history * history, struct result * result) {
    struct network training, testing;
    struct trainer t;
    const int64_t start_ms = gcuda_time_ms();
    memset(&testing, 0, sizeof testing);
    trainer_init(&t, opt->seed, opt->epochs);
    gcuda_status st = network_init(&training, backend, m, BATCH, true);
    if (st == GCUDA_STATUS_SUCCESS) { st = network_init(&testing, backend, m, N_TEST, false); }
    for (int e = 0; e < opt->epochs && st == GCUDA_STATUS_SUCCESS; ++e) {
        st = train_epoch(&t, backend, &training, data, &history->train_loss[e]);
        if (st == GCUDA_STATUS_SUCCESS) { st = run_test(backend, &testing, data, result); }
        if (st != GCUDA_STATUS_SUCCESS) { break; }
        history->test_loss[e] = result->loss;
        history->n = e + 1;
        show_progress(e + 1, opt->epochs, history->train_loss[e], result, gcuda_time_ms() - start_ms);
    }
    network_free(&training);
    network_free(&testing);
    return st;
}

static gcuda_status train_and_show(const struct options * opt, gcuda_backend_t backend, struct model * m,
    const struct data * data, double * accuracy) {
    static struct history history;
    static struct result result;
    unsigned long long seed = opt->seed;
    TRY(model_init(m, backend, GCUDA_TYPE_F32, true));
    TRY(model_randomise(m, &seed));
    TRY(train(opt, backend, m, data, &history, &result));
    show_curve(&history);
    show_confusion(data, &result);
    show_digits(data, &result);
    *accuracy = result.accuracy;
    printf("\nsaved, loaded again and tested:\n");
    TRY(test_saved(m, GCUDA_TYPE_F16, opt->save, backend, data));
    return test_saved(m, GCUDA_TYPE_Q8_0, opt->save, backend, data);
}

static gcuda_status test_named_file(const char * name, gcuda_backend_t backend, const struct data * data) {
    FILE * f = fopen(name, "rb");
    if (f == NULL) { return fail(GCUDA_STATUS_IO, "cannot open %s: %s", name, strerror(errno)); }
    const gcuda_status st = test_file(f, backend, data);
    fclose(f);
    return st;
}

static gcuda_status run(const struct options * opt, double * accuracy) {
    static struct data data;
    struct model m;
    memset(&m, 0, sizeof m);
    split_data(&data);
    gcuda_backend_t backend = opt->backend ? gcuda_backend_init_by_name(opt->backend, NULL) : gcuda_backend_init_best();
    gcuda_status st = made(backend);
    if (st == GCUDA_STATUS_SUCCESS && gcuda_backend_is_cpu(backend)) {
        st = gcuda_backend_cpu_set_n_threads(backend, opt->threads);
    }
    if (st == GCUDA_STATUS_SUCCESS) {
        printf("%d digits to learn from, %d to test with, on %s\n", (int) N_TRAIN, (int) N_TEST,
            gcuda_backend_name(backend));
        st = opt->load ? test_named_file(opt->load, backend, &data) : train_and_show(opt, backend, &m, &data, accuracy);
    }
    model_free(&m);
    gcuda_backend_free(backend);
    return st;
}

static int usage(FILE * f, int code) {
    fprintf(f, "digits: trains a classifier of handwritten digits\n"
               "  --epochs N      times it sees all of them (default 60)\n"
               "  --threads N     of the CPU backend (default 2)\n"
               "  --seed N        of weights and shuffling (default 1)\n"
               "  --backend NAME  device to run on (default: the best there is)\n"
               "  --save FILE     keep the weights in FILE.f16 and FILE.q8_0\n"
               "  --load FILE     test the weights in FILE instead of training\n");
    return code;
}

static bool parse_number(const char * text, int lo, int hi, int * out) {
    char * end;
    const long v = strtol(text, &end, 10);
    if (end == text || *end != '\0' || v < lo || v > hi) { return false; }
    *out = (int) v;
    return true;
}

static bool parse_option(struct options * opt, const char * name, const char * value) {
    int seed;
    if (strcmp(name, "--epochs") == 0) { return parse_number(value, 1, MAX_EPOCHS, &opt->epochs); }
    if (strcmp(name, "--threads") == 0) { return parse_number(value, 1, GCUDA_MAX_N_THREADS, &opt->threads); }
    if (strcmp(name, "--seed") == 0) {
        const bool ok = parse_number(value, 0, 2147483647, &seed);
        opt->seed = ok ? (unsigned long long) seed : 0;
        return ok;
    }
    const char ** text = strcmp(name, "--backend") == 0 ? &opt->backend
                         : strcmp(name, "--save") == 0  ? &opt->save
                         : strcmp(name, "--load") == 0  ? &opt->load
                                                        : NULL;
    if (text != NULL) { *text = value; }
    return text != NULL;
}

int main(int argc, char ** argv) {
    struct options opt = { DEFAULT_EPOCHS, 2, 1, NULL, NULL, NULL };
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--help") == 0) { return usage(stdout, 0); }
        if (i + 1 >= argc || !parse_option(&opt, argv[i], argv[i + 1])) {
            fprintf(stderr, "digits: cannot use '%s%s%s'\n", argv[i], i + 1 < argc ? " " : "",
                i + 1 < argc ? argv[i + 1] : "");
            return usage(stderr, 2);
        }
    }
    double accuracy = 0.0;
    const int64_t start_ms = gcuda_time_ms();
    const gcuda_status st = run(&opt, &accuracy);
    if (st != GCUDA_STATUS_SUCCESS) {
        fprintf(stderr, "digits: %s: %s\n", gcuda_status_to_string(st), gcuda_last_error());
        return 1;
    }
    if (opt.load != NULL) { return 0; }
    printf("\n%.2f %% of the test digits are recognised, after %.1f s\n", 100.0 * accuracy,
        (double) (gcuda_time_ms() - start_ms) / 1000.0);
    if (opt.epochs >= DEFAULT_EPOCHS && accuracy < wanted_accuracy) {
        fprintf(stderr, "digits: %.0f %% were wanted\n", 100.0 * wanted_accuracy);
        return 3;
    }
    return 0;
}
