// Does with a model what tests/llm/check.py says, through the public functions of examples/llm.h alone, and answers in
// bytes.
//
// A command is a line of words on the standard input, some with bytes after the line. The answer on the standard output
// is the status, the number of bytes (both int32) and the bytes: the result, or the message of what failed. Numbers are
// in the machine's byte order, logits float32.
//
//     load BACKEND PATH                  "-": the backend that the library chooses; a number of GPUs. Frees what
//                                        was loaded before
//     session CTX SEQS CHUNK OUTPUTS THREADS KV EXACT    KV: a gcuda_type, -1: the default
//     info                               name=value lines
//     tokenize FLAGS BYTES               and that number of bytes of text; answers ids
//     detokenize SPECIAL N               and N ids; answers bytes
//     ends N                             and N ids; answers a byte for each: llm_token_is_end
//     eval N                             and N tokens, N sequences, N bytes: wanted; answers the logits of those wanted
//     greedy SEQ N                       answers N ids, each sampled and evaluated
//     embed N                            and N ids; answers the vector
//     keep SEQ N / truncate SEQ N / copy SEQ SEQ / shift SEQ KEEP DROP / length SEQ     keep: and N tokens
//     save / restore BYTES               restore: and that number of bytes
//     chat OPEN TOKENS N                 and for each message role, blank, length of the content, newline, content;
//                                        text or ids
#include "gcuda.h"
#define LLM_IMPLEMENTATION
#include "../../examples/llm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#endif

enum { MAX_MESSAGES = 32, MAX_BYTES = 1 << 30 };

struct probe {
    struct llm_model * model;
    struct llm_session * session;
    char line[4096];
    char * input;  // bytes after the command
    char * answer; // result, malloc'ed
    size_t n_answer;
};

// The bytes that follow the command; NULL when there are fewer.
static char * take(struct probe * p, size_t n_bytes) {
    free(p->input);
    p->input = n_bytes <= MAX_BYTES ? (char *) malloc(n_bytes + 1) : NULL;
    if (p->input == NULL || fread(p->input, 1, n_bytes, stdin) != n_bytes) {
        fprintf(stderr, "probe: cannot read %zu bytes after '%s'\n", n_bytes, p->line);
        exit(2);
    }
    p->input[n_bytes] = 0;
    return p->input;
}

static void * room(struct probe * p, size_t n_bytes) {
    free(p->answer);
    p->answer = (char *) malloc(n_bytes + 1);
    p->n_answer = n_bytes;
    if (p->answer == NULL) {
        fprintf(stderr, "probe: no memory for %zu bytes\n", n_bytes);
        exit(2);
    }
    return p->answer;
}

static gcuda_status do_load(struct probe * p) {
    char backend[64], path[4000];
    struct llm_model_params params;
    memset(&params, 0, sizeof params);
    if (sscanf(p->line, "load %63s %3999[^\n]", backend, path) != 2) { return GCUDA_STATUS_INVALID_ARGUMENT; }
    params.n_gpus = atoi(backend);
    params.backend = strcmp(backend, "-") && params.n_gpus == 0 ? backend : NULL;
    llm_session_free(p->session);
    llm_model_free(p->model);
    p->session = NULL;
    return llm_model_load(path, &params, &p->model);
}

static gcuda_status do_session(struct probe * p) {
    struct llm_session_params params;
    int kv = -1, exact = 0;
    memset(&params, 0, sizeof params);
    if (sscanf(p->line, "session %d %d %d %d %d %d %d", &params.n_ctx, &params.n_seqs, &params.n_chunk,
            &params.n_outputs, &params.n_threads, &kv, &exact) != 7) {
        return GCUDA_STATUS_INVALID_ARGUMENT;
    }
    params.kv_is_set = kv >= 0;
    params.kv_type = (enum gcuda_type)(kv >= 0 ? kv : 0);
    params.exact = exact != 0;
    llm_session_free(p->session);
    return llm_session_new(p->model, &params, &p->session);
}

static gcuda_status do_info(struct probe * p) {
    const struct llm_info i = llm_model_info(p->model);
    char * text = (char *) room(p, 2000);
    p->n_answer = (size_t) snprintf(text, 2000,
        "arch=%s\nname=%s\nbackend=%s\ntemplate=%s\nn_vocab=%d\nn_embd=%d\nn_layers=%d\nbos=%d\n", i.arch, i.name,
        i.backend, i.template_name ? i.template_name : "", (int) i.n_vocab, (int) i.n_embd, (int) i.n_layers,
        (int) llm_token_bos(p->model));
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status do_tokenize(struct probe * p) {
    int flags = 0;
    size_t n_bytes = 0, n = 0;
    if (sscanf(p->line, "tokenize %d %zu", &flags, &n_bytes) != 2) { return GCUDA_STATUS_INVALID_ARGUMENT; }
    take(p, n_bytes);
    gcuda_status st = llm_tokenize(p->model, p->input, n_bytes, flags, NULL, 0, &n);
    if (st != GCUDA_STATUS_SUCCESS) { return st; }
    room(p, n * sizeof(int32_t));
    return llm_tokenize(p->model, p->input, n_bytes, flags, (int32_t *) p->answer, n, &n);
}

static gcuda_status do_detokenize(struct probe * p) {
    int special = 0;
    size_t n = 0, n_bytes = 0;
    if (sscanf(p->line, "detokenize %d %zu", &special, &n) != 2) { return GCUDA_STATUS_INVALID_ARGUMENT; }
    take(p, n * sizeof(int32_t));
    gcuda_status st = llm_detokenize(p->model, (const int32_t *) p->input, n, special != 0, NULL, 0, &n_bytes);
    if (st != GCUDA_STATUS_SUCCESS) { return st; }
    room(p, n_bytes);
    return llm_detokenize(p->model, (const int32_t *) p->input, n, special != 0, p->answer, n_bytes, &n_bytes);
}

static gcuda_status do_ends(struct probe * p) {
    size_t n = 0, i;
    if (sscanf(p->line, "ends %zu", &n) != 1) { return GCUDA_STATUS_INVALID_ARGUMENT; }
    take(p, n * sizeof(int32_t));
    room(p, n);
    for (i = 0; i < n; i++) { p->answer[i] = (char) llm_token_is_end(p->model, ((const int32_t *) p->input)[i]); }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status do_eval(struct probe * p) {
    struct llm_batch batch;
    size_t n = 0, i;
    memset(&batch, 0, sizeof batch);
    if (sscanf(p->line, "eval %zu", &n) != 1) { return GCUDA_STATUS_INVALID_ARGUMENT; }
    take(p, n * (2 * sizeof(int32_t) + 1));
    bool * wanted = (bool *) malloc(n + 1);
    for (i = 0; wanted && i < n; i++) { wanted[i] = p->input[2 * n * sizeof(int32_t) + i] != 0; }
    batch.tokens = (const int32_t *) p->input;
    batch.seqs = batch.tokens + n;
    batch.outputs = wanted;
    batch.n_tokens = n;
    const gcuda_status st = llm_eval(p->session, &batch);
    free(wanted);
    if (st != GCUDA_STATUS_SUCCESS) { return st; }
    const size_t row = (size_t) llm_model_info(p->model).n_vocab * sizeof(float);
    const int32_t n_rows = llm_n_outputs(p->session);
    room(p, row * (size_t) n_rows);
    for (i = 0; i < (size_t) n_rows; i++) {
        const float * logits = llm_logits(p->session, (int32_t) i);
        if (logits == NULL) { return GCUDA_STATUS_FAILED; }
        memcpy(p->answer + i * row, logits, row);
    }
    return st;
}

static gcuda_status do_greedy(struct probe * p) {
    struct llm_sampler sampler;
    int seq = 0, n = 0, i;
    if (sscanf(p->line, "greedy %d %d", &seq, &n) != 2) { return GCUDA_STATUS_INVALID_ARGUMENT; }
    gcuda_status st = llm_sampler_init(&sampler, NULL);
    int32_t * ids = (int32_t *) room(p, (size_t) n * sizeof(int32_t));
    for (i = 0; i < n && st == GCUDA_STATUS_SUCCESS; i++) {
        st = llm_sample(p->session, seq, &sampler, &ids[i]);
        if (st == GCUDA_STATUS_SUCCESS && i + 1 < n) { st = llm_eval_tokens(p->session, seq, &ids[i], 1); }
    }
    return st;
}

static gcuda_status do_embed(struct probe * p) {
    size_t n = 0;
    if (sscanf(p->line, "embed %zu", &n) != 1) { return GCUDA_STATUS_INVALID_ARGUMENT; }
    take(p, n * sizeof(int32_t));
    room(p, (size_t) llm_model_info(p->model).n_embd * sizeof(float));
    return llm_embed(p->session, (const int32_t *) p->input, n, (float *) p->answer);
}

static gcuda_status do_keep(struct probe * p) {
    int seq = 0;
    size_t n = 0, kept = 0;
    if (sscanf(p->line, "keep %d %zu", &seq, &n) != 2) { return GCUDA_STATUS_INVALID_ARGUMENT; }
    take(p, n * sizeof(int32_t));
    const gcuda_status st = llm_seq_keep_prefix(p->session, seq, (const int32_t *) p->input, n, &kept);
    const int32_t answer = (int32_t) kept;
    memcpy(room(p, sizeof answer), &answer, sizeof answer);
    return st;
}

static gcuda_status do_sequence(struct probe * p) {
    int a = 0, b = 0, c = 0;
    if (sscanf(p->line, "truncate %d %d", &a, &b) == 2) { return llm_seq_truncate(p->session, a, b); }
    if (sscanf(p->line, "copy %d %d", &a, &b) == 2) { return llm_seq_copy(p->session, a, b); }
    if (sscanf(p->line, "shift %d %d %d", &a, &b, &c) == 3) { return llm_seq_shift(p->session, a, b, c); }
    if (sscanf(p->line, "length %d", &a) == 1) {
        const int32_t answer = llm_seq_length(p->session, a);
        memcpy(room(p, sizeof answer), &answer, sizeof answer);
        return GCUDA_STATUS_SUCCESS;
    }
    return GCUDA_STATUS_INVALID_ARGUMENT;
}

static gcuda_status do_save(struct probe * p) {
    size_t n = 0;
    const gcuda_status st = llm_state_save(p->session, NULL, 0, &n);
    if (st != GCUDA_STATUS_SUCCESS) { return st; }
    room(p, n);
    return llm_state_save(p->session, p->answer, n, &n);
}

static gcuda_status do_restore(struct probe * p) {
    size_t n = 0;
    if (sscanf(p->line, "restore %zu", &n) != 1) { return GCUDA_STATUS_INVALID_ARGUMENT; }
    take(p, n);
    return llm_state_restore(p->session, p->input, n);
}

static gcuda_status do_chat(struct probe * p) {
    static char roles[MAX_MESSAGES][16];
    struct llm_message messages[MAX_MESSAGES];
    int is_open = 0, as_tokens = 0, n = 0, i;
    size_t size = 0;
    char * contents[MAX_MESSAGES] = { NULL };
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    if (sscanf(p->line, "chat %d %d %d", &is_open, &as_tokens, &n) != 3 || n > MAX_MESSAGES) {
        return GCUDA_STATUS_INVALID_ARGUMENT;
    }
    for (i = 0; i < n; i++) {
        size_t n_bytes = 0;
        char line[64];
        if (fgets(line, sizeof line, stdin) == NULL || sscanf(line, "%15s %zu", roles[i], &n_bytes) != 2) { exit(2); }
        take(p, n_bytes);
        contents[i] = p->input;
        p->input = NULL;
        messages[i].role = roles[i];
        messages[i].content = contents[i];
    }
    if (as_tokens) {
        st = llm_chat_tokenize(p->model, messages, (size_t) n, is_open != 0, NULL, 0, &size);
        if (st == GCUDA_STATUS_SUCCESS) {
            room(p, size * sizeof(int32_t));
            st = llm_chat_tokenize(p->model, messages, (size_t) n, is_open != 0, (int32_t *) p->answer, size, &size);
        }
    } else {
        st = llm_chat_text(p->model, messages, (size_t) n, is_open != 0, NULL, 0, &size);
        if (st == GCUDA_STATUS_SUCCESS) {
            room(p, size);
            st = llm_chat_text(p->model, messages, (size_t) n, is_open != 0, p->answer, size, &size);
        }
    }
    for (i = 0; i < n; i++) { free(contents[i]); }
    return st;
}

static const struct {
    const char * name;
    gcuda_status (*run)(struct probe * p);
} commands[] = {
    { "load", do_load },
    { "session", do_session },
    { "info", do_info },
    { "tokenize", do_tokenize },
    { "detokenize", do_detokenize },
    { "ends", do_ends },
    { "eval", do_eval },
    { "greedy", do_greedy },
    { "embed", do_embed },
    { "keep", do_keep },
    { "truncate", do_sequence },
    { "copy", do_sequence },
    { "shift", do_sequence },
    { "length", do_sequence },
    { "save", do_save },
    { "restore", do_restore },
    { "chat", do_chat },
};

static gcuda_status run(struct probe * p) {
    size_t i;
    for (i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        const size_t n = strlen(commands[i].name);
        if (strncmp(p->line, commands[i].name, n) == 0 && strchr(" \n", p->line[n]) != NULL) {
            return commands[i].run(p);
        }
    }
    fprintf(stderr, "probe: unknown command %s", p->line);
    exit(2);
}

static void reply(struct probe * p, gcuda_status st) {
    const char * bytes = st == GCUDA_STATUS_SUCCESS ? p->answer : gcuda_last_error();
    const size_t n_bytes = st == GCUDA_STATUS_SUCCESS ? p->n_answer : strlen(bytes);
    const int32_t head[2] = { (int32_t) st, (int32_t) n_bytes };
    fwrite(head, 1, sizeof head, stdout);
    if (n_bytes > 0) { fwrite(bytes, 1, n_bytes, stdout); }
    fflush(stdout);
}

int main(void) {
    static struct probe p;
#ifdef _WIN32
    _setmode(_fileno(stdin), _O_BINARY);
    _setmode(_fileno(stdout), _O_BINARY);
#endif
    while (fgets(p.line, sizeof p.line, stdin) != NULL) {
        p.n_answer = 0;
        reply(&p, run(&p));
    }
    free(p.input);
    free(p.answer);
    llm_session_free(p.session);
    llm_model_free(p.model);
    return 0;
}
