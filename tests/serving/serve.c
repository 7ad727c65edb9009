/* Serves SavedModels as a C++ server would: through the C API of TensorFlow's shared libraries.

   serve MODEL REQUEST [MODEL REQUEST ...]            prints the outputs, a line for each row
   serve --time ROUNDS RUNS MODEL REQUEST [...]       prints seconds for a run, one for each round

   With --time the models take turns in every round, so that the machine's load falls on all alike;
   each line is the mean of RUNS runs, the models of a round one after the other.

   A request is text. Tensor names are those of the signature in the SavedModel:

       input NAME DTYPE RANK SIZE ...     float, int32, int64 or string; then one value a line,
       0.25                               strings as the hexadecimal digits of their bytes
       output NAME

   Exit code: 0, 1 for an error that TensorFlow tells (bad input, say), 2 for a bad command. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tensorflow/c/c_api.h"

enum { MOST_TENSORS = 256, MOST_MODELS = 8, MOST_DIMENSIONS = 8, LONGEST_LINE = 1 << 16 };

typedef struct {
  TF_Graph* graph;
  TF_Session* session;
  TF_Output inputs[MOST_TENSORS], outputs[MOST_TENSORS];
  TF_Tensor* values[MOST_TENSORS];
  int num_inputs, num_outputs;
} Model;

static void fail(int code, const char* what, const char* which) {
  fprintf(stderr, "serve: %s: %s\n", what, which);
  exit(code);
}

static void check(TF_Status* status, const char* what) {
  if (TF_GetCode(status) != TF_OK) fail(1, what, TF_Message(status));
}

/* The end `operation:index` of an edge of the graph. */
static TF_Output find_tensor(TF_Graph* graph, const char* name) {
  char operation[LONGEST_LINE];
  snprintf(operation, sizeof operation, "%s", name);
  char* colon = strrchr(operation, ':');
  if (colon == NULL) fail(2, "expected a tensor name such as x:0", name);
  *colon = '\0';
  TF_Output output = {TF_GraphOperationByName(graph, operation), atoi(colon + 1)};
  if (output.oper == NULL) fail(2, "no such tensor in the graph", name);
  return output;
}

static const char* next_line(FILE* file, char* line) {
  if (fgets(line, LONGEST_LINE, file) == NULL) return NULL;
  line[strcspn(line, "\n")] = '\0';
  return line;
}

static void set_string(TF_TString* value, const char* digits) {
  size_t size = strlen(digits) / 2;
  char* bytes = malloc(size + 1);
  for (size_t i = 0; i < size; ++i) {
    unsigned byte;
    if (sscanf(digits + 2 * i, "%2x", &byte) != 1) fail(2, "no hexadecimal digits", digits);
    bytes[i] = (char)byte;
  }
  TF_TString_Init(value);
  TF_TString_Copy(value, bytes, size);
  free(bytes);
}

static void free_strings(void* data, size_t size, void* unused) {
  (void)unused;
  TF_TString* values = data;
  for (size_t i = 0; i < size / sizeof(TF_TString); ++i) TF_TString_Dealloc(&values[i]);
  free(data);
}

/* Reads the values of one tensor; `dtype` is a word of the request. */
static TF_Tensor* read_tensor(FILE* file, const char* dtype, const int64_t* sizes, int rank) {
  char line[LONGEST_LINE];
  int64_t count = 1;
  for (int i = 0; i < rank; ++i) count *= sizes[i];
  int is_string = strcmp(dtype, "string") == 0;
  TF_DataType type = is_string                      ? TF_STRING
                     : strcmp(dtype, "int32") == 0  ? TF_INT32
                     : strcmp(dtype, "int64") == 0  ? TF_INT64
                                                    : TF_FLOAT;
  if (type == TF_FLOAT && strcmp(dtype, "float") != 0) fail(2, "unknown dtype", dtype);
  size_t size = (size_t)count * (is_string ? sizeof(TF_TString) : TF_DataTypeSize(type));
  void* data = calloc(1, size + 1);
  for (int64_t i = 0; i < count; ++i) {
    const char* text = next_line(file, line);
    if (text == NULL) fail(2, "the request ends within a tensor of dtype", dtype);
    if (type == TF_STRING) set_string((TF_TString*)data + i, text);
    if (type == TF_INT32) ((int32_t*)data)[i] = (int32_t)strtol(text, NULL, 10);
    if (type == TF_INT64) ((int64_t*)data)[i] = (int64_t)strtoll(text, NULL, 10);
    if (type == TF_FLOAT) ((float*)data)[i] = strtof(text, NULL);
  }
  if (is_string) return TF_NewTensor(type, sizes, rank, data, size, free_strings, NULL);
  TF_Tensor* tensor = TF_AllocateTensor(type, sizes, rank, size);
  memcpy(TF_TensorData(tensor), data, size);
  free(data);
  return tensor;
}

static void read_request(Model* model, const char* path) {
  FILE* file = fopen(path, "r");
  if (file == NULL) fail(2, "cannot read", path);
  char line[LONGEST_LINE], name[LONGEST_LINE], dtype[16];
  while (next_line(file, line) != NULL) {
    int rank = 0, at = 0;
    if (model->num_inputs == MOST_TENSORS || model->num_outputs == MOST_TENSORS)
      fail(2, "too many tensors in", path);
    if (sscanf(line, "output %65535s", name) == 1) {
      model->outputs[model->num_outputs++] = find_tensor(model->graph, name);
    } else if (sscanf(line, "input %65535s %15s %d%n", name, dtype, &rank, &at) == 3 &&
               rank <= MOST_DIMENSIONS) {
      int64_t sizes[MOST_DIMENSIONS];
      char* rest = line + at;
      for (int i = 0; i < rank; ++i) sizes[i] = strtoll(rest, &rest, 10);
      model->inputs[model->num_inputs] = find_tensor(model->graph, name);
      model->values[model->num_inputs++] = read_tensor(file, dtype, sizes, rank);
    } else {
      fail(2, "expected `input NAME DTYPE RANK SIZE ...` or `output NAME`, received", line);
    }
  }
  fclose(file);
}

static void load(Model* model, const char* folder, const char* request) {
  TF_Status* status = TF_NewStatus();
  TF_SessionOptions* options = TF_NewSessionOptions();
  const char* tags[] = {"serve"};
  model->graph = TF_NewGraph();
  model->session = TF_LoadSessionFromSavedModel(options, NULL, folder, tags, 1, model->graph,
                                                NULL, status);
  check(status, folder);
  read_request(model, request);
  TF_DeleteSessionOptions(options);
  TF_DeleteStatus(status);
}

static void run(Model* model, TF_Tensor** results, TF_Status* status) {
  TF_SessionRun(model->session, NULL, model->inputs, model->values, model->num_inputs,
                model->outputs, results, model->num_outputs, NULL, 0, NULL, status);
  check(status, "run");
}

/* Rows one below the other, the outputs of each side by side. */
static void print_outputs(Model* model) {
  TF_Tensor* results[MOST_TENSORS] = {NULL};
  TF_Status* status = TF_NewStatus();
  run(model, results, status);
  int64_t num_rows = TF_TensorElementCount(results[0]);
  for (int i = 0; i < model->num_outputs; ++i)
    if (TF_TensorType(results[i]) != TF_FLOAT || TF_TensorElementCount(results[i]) != num_rows)
      fail(2, "outputs must be float", "one value a row each");
  for (int64_t row = 0; row < num_rows; ++row)
    for (int i = 0; i < model->num_outputs; ++i)
      printf("%.9g%c", ((float*)TF_TensorData(results[i]))[row],
             i + 1 < model->num_outputs ? ' ' : '\n');
  for (int i = 0; i < model->num_outputs; ++i) TF_DeleteTensor(results[i]);
  TF_DeleteStatus(status);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double seconds_of_run(Model* model, int num_runs) {
  TF_Status* status = TF_NewStatus();
  double start = seconds();
  for (int i = 0; i < num_runs; ++i) {
    TF_Tensor* results[MOST_TENSORS] = {NULL};
    run(model, results, status);
    for (int k = 0; k < model->num_outputs; ++k) TF_DeleteTensor(results[k]);
  }
  double taken = (seconds() - start) / num_runs;
  TF_DeleteStatus(status);
  return taken;
}

int main(int count, char** arguments) {
  static Model models[MOST_MODELS];
  int first = 1, num_rounds = 0, num_runs = 0;
  if (count > 4 && strcmp(arguments[1], "--time") == 0) {
    num_rounds = atoi(arguments[2]);
    num_runs = atoi(arguments[3]);
    first = 4;
  }
  int num_models = (count - first) / 2;
  if (num_models < 1 || num_models > MOST_MODELS || (count - first) % 2)
    fail(2, "usage", "serve [--time ROUNDS RUNS] MODEL REQUEST [MODEL REQUEST ...]");
  for (int i = 0; i < num_models; ++i)
    load(&models[i], arguments[first + 2 * i], arguments[first + 2 * i + 1]);
  if (num_rounds == 0)
    for (int i = 0; i < num_models; ++i) print_outputs(&models[i]);
  /* The first runs of a session make its executors. */
  for (int round = -1; round < num_rounds; ++round)
    for (int i = 0; i < num_models && num_rounds > 0; ++i) {
      double taken = seconds_of_run(&models[i], num_runs);
      if (round >= 0) printf("%.9g\n", taken);
    }
  return 0;
}
