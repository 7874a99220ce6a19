#pragma once

#include "common/model_shape/model_shape.h"

namespace tandem {

// Shapes of published models, from their config.json files: for planning without a model file.
ModelShape Llama2Of7B();
ModelShape Llama31Of8B();
ModelShape Llama31Of70B();
ModelShape SmolLm2Of135M();

}  // namespace tandem
