#include "common/model_shape/known_shapes.h"

namespace tandem {

ModelShape Llama2Of7B() {
  ModelShape shape;
  shape.num_layers = 32;
  shape.hidden_size = 4096;
  shape.intermediate_size = 11008;
  shape.num_q_heads = 32;
  shape.num_kv_heads = 32;
  shape.head_dim = 128;
  shape.vocab_size = 32000;
  shape.max_position = 4096;
  return shape;
}

ModelShape Llama31Of8B() {
  ModelShape shape = Llama2Of7B();
  shape.intermediate_size = 14336;
  shape.num_kv_heads = 8;
  shape.vocab_size = 128256;
  shape.max_position = 131072;
  shape.rope.theta = 500000;
  return shape;
}

ModelShape Llama31Of70B() {
  ModelShape shape = Llama31Of8B();
  shape.num_layers = 80;
  shape.hidden_size = 8192;
  shape.intermediate_size = 28672;
  shape.num_q_heads = 64;
  return shape;
}

ModelShape SmolLm2Of135M() {
  ModelShape shape;
  shape.num_layers = 30;
  shape.hidden_size = 576;
  shape.intermediate_size = 1536;
  shape.num_q_heads = 9;
  shape.num_kv_heads = 3;
  shape.head_dim = 64;
  shape.vocab_size = 49152;
  shape.max_position = 8192;
  shape.rope.theta = 100000;
  shape.tied_embeddings = true;
  return shape;
}

}  // namespace tandem
