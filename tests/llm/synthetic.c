// Writes a GGUF file with random weights in the shapes and types of a real model, to measure speed with: what it says
// is noise.
//
//     llm-synthetic PRESET FILE [--layers N] [--vocab N] [--seed N]        presets: see --help
//
// Blocks are random bits with scales that keep activations near 1, so that nothing overflows and no weight is zero
// throughout. Tensors are written one after the other through a buffer of some megabytes. Vocabularies have the real
// number of tokens, of made-up letters, and as many merges.
#include "gcuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call)                                                      \
    do {                                                               \
        const gcuda_status try_status = (call);                        \
        if (try_status != GCUDA_STATUS_SUCCESS) { return try_status; } \
    } while (0)

enum mix { ALL_Q4_0, ALL_Q4_K_M, ALL_F16 }; // types of the matrices, as files of those names have them

static const struct preset {
    const char *name, *arch, *pre;
    enum mix mix;
    int64_t layers, embd, ff, heads, heads_kv, vocab, ctx, experts, used, ff_expert;
    float eps, base;
} presets[] = {
    { "8b-q4_0", "llama", "llama-bpe", ALL_Q4_0, 32, 4096, 14336, 32, 8, 128256, 131072, 0, 0, 0, 1e-5f, 500000.0f },
    { "8b-q4_k_m", "llama", "llama-bpe", ALL_Q4_K_M, 32, 4096, 14336, 32, 8, 128256, 131072, 0, 0, 0, 1e-5f,
        500000.0f },
    { "8b-f16", "llama", "llama-bpe", ALL_F16, 32, 4096, 14336, 32, 8, 128256, 131072, 0, 0, 0, 1e-5f, 500000.0f },
    { "30b-a3b-q4_0", "qwen3moe", "qwen2", ALL_Q4_0, 48, 2048, 6144, 32, 4, 151936, 40960, 128, 8, 768, 1e-6f,
        1000000.0f },
};
enum {
    N_PRESETS = sizeof presets / sizeof *presets,
    HEAD = 128,
    N_BYTES = 256,
    N_PAIRS = 26 * 26,
    N_CONTROL = 2,
    BUFFER = 4 << 20
};

// ---- random blocks ----

static uint64_t random_state = 1;
static uint64_t random_bits(void) { // xorshift64*
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545F4914F6CDD1Du;
}

// F16 with a random sign and fraction: +- [1, 2) * 2^(exponent - 15).
static void put_f16(char * at, uint64_t bits, int exponent, bool is_signed) {
    const uint16_t h = (uint16_t) ((bits & (is_signed ? 0x83FFu : 0x3FFu)) | (unsigned) exponent << 10);
    memcpy(at, &h, sizeof h);
}

// Fields of a block that are not random bits. Standard deviation of a weight: 0.013 (Q4_0), 0.02 (Q4_K), 0.016 (Q6_K).
static void fix_block(enum gcuda_type type, char * block) {
    const uint64_t bits = random_bits();
    switch (type) {
        case GCUDA_TYPE_Q4_0: put_f16(block, bits, 6, true); break;
        case GCUDA_TYPE_Q4_K: // d, and dmin 7.5 times as large: the mean of a weight is near 0
            put_f16(block, bits, 1, false);
            put_f16(block + 2, bits >> 16, 4, false);
            break;
        case GCUDA_TYPE_Q6_K: // 16 scales after the quants, -16 to 15
            for (int i = 192; i < 208; ++i) { block[i] = (char) ((signed char) block[i] / 8); }
            put_f16(block + 208, bits, 1, false);
            break;
        default: break;
    }
}

// n bytes of a type, whole blocks or elements.
static void fill(enum gcuda_type type, char * data, size_t n) {
    const size_t block = gcuda_type_size(type);
    uint64_t bits = 0;
    if (type == GCUDA_TYPE_F32) { // norms and routers: near 1 or near 0 says the caller
        float * f = (float *) (void *) data;
        for (size_t i = 0; i < n / sizeof *f; ++i) { f[i] = (float) (random_bits() >> 40) / (float) (1 << 24) - 0.5f; }
        return;
    }
    for (size_t i = 0; i < n; i += sizeof bits) {
        bits = random_bits();
        if (type == GCUDA_TYPE_F16) { bits = (bits & 0x8FFF8FFF8FFF8FFFu) | 0x1800180018001800u; } // +- 2^-9 to 2^-5
        memcpy(data + i, &bits, n - i < sizeof bits ? n - i : sizeof bits);
    }
    for (size_t i = 0; type != GCUDA_TYPE_F16 && i < n; i += block) { fix_block(type, data + i); }
}

// F32 tensors: routers are small, all others (norms, rope factors) are near 1.
static void shape_floats(const char * name, float * f, size_t n) {
    const bool is_router = strstr(name, "gate_inp") != NULL;
    for (size_t i = 0; i < n; ++i) { f[i] = is_router ? 0.1f * f[i] : 1.0f + 0.2f * f[i]; }
}

// ---- vocabulary ----

// Characters that stand for bytes in byte-pair vocabularies: printable ones for themselves, the others from U+0100 on.
static size_t byte_text(int byte, char * text) {
    int c = byte;
    const bool is_shown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    if (!is_shown) { c = 256 + (byte < 33 ? byte : byte < 161 ? byte - 127 + 33 : 67); }
    if (c < 128) {
        text[0] = (char) c;
        return 1;
    }
    text[0] = (char) (0xC0 | c >> 6);
    text[1] = (char) (0x80 | (c & 63));
    return 2;
}

// Token i: a byte, two letters, four letters, or a control token at the end.
static void token_text(int64_t i, int64_t n_vocab, char * text) {
    if (i < N_BYTES) {
        text[byte_text((int) i, text)] = '\0';
    } else if (i >= n_vocab - N_CONTROL) {
        strcpy(text, i == n_vocab - 1 ? "<|end|>" : "<|begin|>");
    } else {
        int64_t rest = i < N_BYTES + N_PAIRS ? i - N_BYTES : i - N_BYTES - N_PAIRS;
        const int n = i < N_BYTES + N_PAIRS ? 2 : 4;
        for (int k = n - 1; k >= 0; --k, rest /= 26) { text[k] = (char) ('a' + rest % 26); }
        text[n] = '\0';
    }
}

static void merge_text(int64_t i, char * line) { // of token N_BYTES + i: its halves
    char text[16];
    token_text(N_BYTES + i, INT64_MAX, text);
    const size_t half = strlen(text) / 2;
    memcpy(line, text, half);
    line[half] = ' ';
    strcpy(line + half + 1, text + half);
}

static gcuda_status add_vocabulary(struct gcuda_gguf_context * g, const struct preset * p) {
    enum { SIZE = 16 };
    const size_t n = (size_t) p->vocab, n_merges = n - N_BYTES - N_CONTROL;
    char * texts = (char *) calloc(n, SIZE);
    const char ** list = (const char **) calloc(n, sizeof *list);
    int32_t * types = (int32_t *) calloc(n, sizeof *types);
    gcuda_status st = texts && list && types ? GCUDA_STATUS_SUCCESS
                                             : gcuda_set_last_error(GCUDA_STATUS_ALLOC_FAILED, "out of memory");
    for (size_t i = 0; st == GCUDA_STATUS_SUCCESS && i < n; ++i) {
        list[i] = texts + i * SIZE;
        token_text((int64_t) i, p->vocab, texts + i * SIZE);
        types[i] = i < n - N_CONTROL ? 1 : 3; // normal, control
    }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_gguf_set_arr_str(g, "tokenizer.ggml.tokens", list, n); }
    if (st == GCUDA_STATUS_SUCCESS) {
        st = gcuda_gguf_set_arr_data(g, "tokenizer.ggml.token_type", GCUDA_GGUF_TYPE_INT32, types, n);
    }
    for (size_t i = 0; st == GCUDA_STATUS_SUCCESS && i < n_merges; ++i) { merge_text((int64_t) i, texts + i * SIZE); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_gguf_set_arr_str(g, "tokenizer.ggml.merges", list, n_merges); }
    free(texts);
    free((void *) list);
    free(types);
    TRY(st);
    TRY(gcuda_gguf_set_val_str(g, "tokenizer.ggml.model", "gpt2"));
    TRY(gcuda_gguf_set_val_str(g, "tokenizer.ggml.pre", p->pre));
    TRY(gcuda_gguf_set_val_u32(g, "tokenizer.ggml.bos_token_id", (uint32_t) n - 2));
    return gcuda_gguf_set_val_u32(g, "tokenizer.ggml.eos_token_id", (uint32_t) n - 1);
}

// ---- keys and tensors ----

static gcuda_status add_key(struct gcuda_gguf_context * g, const char * arch, const char * name, int64_t value) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    return value == 0 ? GCUDA_STATUS_SUCCESS : gcuda_gguf_set_val_u32(g, key, (uint32_t) value);
}
static gcuda_status add_float(struct gcuda_gguf_context * g, const char * arch, const char * name, float value) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    return gcuda_gguf_set_val_f32(g, key, value);
}

static gcuda_status add_keys(struct gcuda_gguf_context * g, const struct preset * p) {
    char name[96];
    snprintf(name, sizeof name, "random weights, %s, %d layers", p->name, (int) p->layers);
    TRY(gcuda_gguf_set_val_str(g, "general.architecture", p->arch));
    TRY(gcuda_gguf_set_val_str(g, "general.name", name));
    TRY(add_key(g, p->arch, "context_length", p->ctx));
    TRY(add_key(g, p->arch, "embedding_length", p->embd));
    TRY(add_key(g, p->arch, "block_count", p->layers));
    TRY(add_key(g, p->arch, "feed_forward_length", p->ff));
    TRY(add_key(g, p->arch, "attention.head_count", p->heads));
    TRY(add_key(g, p->arch, "attention.head_count_kv", p->heads_kv));
    TRY(add_key(g, p->arch, "attention.key_length", HEAD));
    TRY(add_key(g, p->arch, "attention.value_length", HEAD));
    TRY(add_key(g, p->arch, "rope.dimension_count", HEAD));
    TRY(add_key(g, p->arch, "expert_count", p->experts));
    TRY(add_key(g, p->arch, "expert_used_count", p->used));
    TRY(add_key(g, p->arch, "expert_feed_forward_length", p->ff_expert));
    TRY(add_float(g, p->arch, "attention.layer_norm_rms_epsilon", p->eps));
    return add_float(g, p->arch, "rope.freq_base", p->base);
}

static const struct row {
    const char * name; // %d: the layer
    // sizes: e embd, f ff, x ff_expert, q heads, k heads_kv (both times HEAD), h HEAD, r HEAD / 2, n experts, v vocab
    char ne[4];
    char kind; // n: F32. For the others the type depends on the mix; d, v, o: those that Q4_K_M gives more bits
    char in;   // l: the llama presets alone, m: those with experts alone, a: all
} rows[] = {
    { "token_embd.weight", "ev", 'w', 'a' },
    { "rope_freqs.weight", "r", 'n', 'l' },
    { "blk.%d.attn_norm.weight", "e", 'n', 'a' },
    { "blk.%d.attn_q.weight", "eq", 'w', 'a' },
    { "blk.%d.attn_k.weight", "ek", 'w', 'a' },
    { "blk.%d.attn_v.weight", "ek", 'v', 'a' },
    { "blk.%d.attn_q_norm.weight", "h", 'n', 'm' },
    { "blk.%d.attn_k_norm.weight", "h", 'n', 'm' },
    { "blk.%d.attn_output.weight", "qe", 'w', 'a' },
    { "blk.%d.ffn_norm.weight", "e", 'n', 'a' },
    { "blk.%d.ffn_gate.weight", "ef", 'w', 'l' },
    { "blk.%d.ffn_up.weight", "ef", 'w', 'l' },
    { "blk.%d.ffn_down.weight", "fe", 'd', 'l' },
    { "blk.%d.ffn_gate_inp.weight", "en", 'n', 'm' },
    { "blk.%d.ffn_gate_exps.weight", "exn", 'w', 'm' },
    { "blk.%d.ffn_up_exps.weight", "exn", 'w', 'm' },
    { "blk.%d.ffn_down_exps.weight", "xen", 'd', 'm' },
    { "output_norm.weight", "e", 'n', 'a' },
    { "output.weight", "ev", 'o', 'a' },
};

static int64_t size_of(const struct preset * p, char c) {
    switch (c) {
        case 'e': return p->embd;
        case 'f': return p->ff;
        case 'x': return p->ff_expert;
        case 'q': return p->heads * HEAD;
        case 'k': return p->heads_kv * HEAD;
        case 'h': return HEAD;
        case 'r': return HEAD / 2;
        case 'n': return p->experts;
        case 'v': return p->vocab;
        default: return 1;
    }
}

// Types as in usual files. Q4_K_M gives 6 bits to values and to the last matrix of a block, in the first and last
// eighth of the layers and in every third between. The output matrix has 6 bits in both.
static enum gcuda_type type_of(const struct preset * p, char kind, int64_t layer) {
    const int64_t eighth = p->layers / 8;
    const bool has_more_bits = layer < eighth || layer >= 7 * p->layers / 8 || (layer - eighth) % 3 == 2;
    if (kind == 'n') { return GCUDA_TYPE_F32; }
    if (p->mix == ALL_F16) { return GCUDA_TYPE_F16; }
    if (kind == 'o' || (p->mix == ALL_Q4_K_M && (kind == 'v' || kind == 'd') && has_more_bits)) {
        return GCUDA_TYPE_Q6_K;
    }
    return p->mix == ALL_Q4_0 ? GCUDA_TYPE_Q4_0 : GCUDA_TYPE_Q4_K;
}

static gcuda_status add_tensor(struct gcuda_gguf_context * g, struct gcuda_context * ctx, const struct preset * p,
    const struct row * r, int64_t layer) {
    int64_t ne[3] = { 1, 1, 1 };
    char name[64];
    if (r->in != 'a' && r->in != (p->experts > 0 ? 'm' : 'l')) { return GCUDA_STATUS_SUCCESS; }
    for (size_t i = 0; i < 3 && r->ne[i] != '\0'; ++i) { ne[i] = size_of(p, r->ne[i]); }
    snprintf(name, sizeof name, strchr(r->name, '%') ? "blk.%d.%s" : "%.0d%s", (int) layer,
        strchr(r->name, '%') ? r->name + 7 : r->name);
    struct gcuda_tensor * t = gcuda_new_tensor(ctx, type_of(p, r->kind, layer), (int) strlen(r->ne), ne);
    return t ? gcuda_gguf_add_tensor(g, gcuda_set_name(t, name)) : gcuda_context_status(ctx);
}

static gcuda_status add_tensors(struct gcuda_gguf_context * g, struct gcuda_context * ctx, const struct preset * p) {
    const size_t n = sizeof rows / sizeof *rows;
    size_t first = 0, end = n;
    while (strchr(rows[first].name, '%') == NULL) { ++first; }
    while (strchr(rows[end - 1].name, '%') == NULL) { --end; }
    for (size_t i = 0; i < first; ++i) { TRY(add_tensor(g, ctx, p, &rows[i], 0)); }
    for (int64_t l = 0; l < p->layers; ++l) {
        for (size_t i = first; i < end; ++i) { TRY(add_tensor(g, ctx, p, &rows[i], l)); }
    }
    for (size_t i = end; i < n; ++i) { TRY(add_tensor(g, ctx, p, &rows[i], 0)); }
    return GCUDA_STATUS_SUCCESS;
}

// ---- writing ----

static gcuda_status write_bytes(FILE * file, const void * data, size_t n) {
    return fwrite(data, 1, n, file) == n
               ? GCUDA_STATUS_SUCCESS
               : gcuda_set_last_error(GCUDA_STATUS_IO, "the file cannot be written (is the disk full?)");
}

static gcuda_status write_tensor(const struct gcuda_gguf_context * g, int64_t id, char * buffer, FILE * file) {
    const enum gcuda_type type = gcuda_gguf_get_tensor_type(g, id);
    const size_t size = gcuda_gguf_get_tensor_size(g, id), align = gcuda_gguf_get_alignment(g);
    const size_t piece = (size_t) BUFFER / gcuda_type_size(type) * gcuda_type_size(type);
    for (size_t at = 0; at < size; at += piece) {
        const size_t n = size - at < piece ? size - at : piece;
        fill(type, buffer, n);
        if (type == GCUDA_TYPE_F32) {
            shape_floats(gcuda_gguf_get_tensor_name(g, id), (float *) (void *) buffer, n / sizeof(float));
        }
        TRY(write_bytes(file, buffer, n));
    }
    memset(buffer, 0, align);
    return write_bytes(file, buffer, (align - size % align) % align);
}

static gcuda_status write_file(const struct gcuda_gguf_context * g, FILE * file) {
    char * buffer = (char *) malloc(BUFFER);
    gcuda_status st = buffer ? gcuda_gguf_write_to_file_ptr(g, file, true)
                             : gcuda_set_last_error(GCUDA_STATUS_ALLOC_FAILED, "out of memory");
    for (int64_t i = 0; st == GCUDA_STATUS_SUCCESS && i < gcuda_gguf_get_n_tensors(g); ++i) {
        st = write_tensor(g, i, buffer, file);
    }
    free(buffer);
    return st;
}

static gcuda_status make(const struct preset * p, const char * path) {
    const struct gcuda_init_params params = { 0, NULL, true };
    struct gcuda_gguf_context * g = gcuda_gguf_init_empty();
    struct gcuda_context * ctx = gcuda_init(params);
    FILE * file = fopen(path, "wb");
    gcuda_status st = g && ctx ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_ALLOC_FAILED;
    if (st == GCUDA_STATUS_SUCCESS && file == NULL) {
        st = gcuda_set_last_error(GCUDA_STATUS_IO, "the file cannot be opened for writing");
    }
    if (st == GCUDA_STATUS_SUCCESS) { st = add_keys(g, p); }
    if (st == GCUDA_STATUS_SUCCESS) { st = add_vocabulary(g, p); }
    if (st == GCUDA_STATUS_SUCCESS) { st = add_tensors(g, ctx, p); }
    if (st == GCUDA_STATUS_SUCCESS) { st = write_file(g, file); }
    if (file != NULL && fclose(file) != 0 && st == GCUDA_STATUS_SUCCESS) {
        st = gcuda_set_last_error(GCUDA_STATUS_IO, "the file cannot be written");
    }
    if (st == GCUDA_STATUS_SUCCESS) { printf("%s: %.2f GB\n", path, (double) gcuda_gguf_get_write_size(g) * 1e-9); }
    gcuda_gguf_free(g);
    gcuda_free(ctx);
    return st;
}

static int usage(void) {
    fprintf(stderr, "llm-synthetic PRESET FILE [--layers N] [--vocab N] [--seed N]; presets:");
    for (int i = 0; i < N_PRESETS; ++i) { fprintf(stderr, " %s", presets[i].name); }
    fprintf(stderr, "\n");
    return 2;
}

int main(int argc, char ** argv) {
    struct preset p;
    memset(&p, 0, sizeof p);
    for (int i = 0; i < N_PRESETS && argc > 2; ++i) {
        if (strcmp(argv[1], presets[i].name) == 0) { p = presets[i]; }
    }
    for (int i = 3; i + 1 < argc; i += 2) {
        const long long value = strtoll(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--layers") == 0) {
            p.layers = value;
        } else if (strcmp(argv[i], "--vocab") == 0) {
            p.vocab = value;
        } else if (strcmp(argv[i], "--seed") == 0) {
            random_state = value > 0 ? (uint64_t) value : 1;
        } else {
            return usage();
        }
    }
    const int64_t most = N_BYTES + N_PAIRS + 26 * 26 * 26 * 26;
    if (p.name == NULL || argc % 2 == 0 || p.layers < 1 || p.layers > 512 || p.vocab < N_BYTES + N_PAIRS + N_CONTROL ||
        p.vocab > most) {
        return usage();
    }
    const gcuda_status st = make(&p, argv[2]);
    if (st != GCUDA_STATUS_SUCCESS) { fprintf(stderr, "llm-synthetic: %s: %s\n", argv[2], gcuda_last_error()); }
    return st == GCUDA_STATUS_SUCCESS ? 0 : 1;
}
