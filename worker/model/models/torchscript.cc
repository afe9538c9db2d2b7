// torchscript: any module that the user saved from Python; see layers/script_module.h.
#include "worker/model/layers/script_module.h"

namespace ddprun {

extern const ModelEntry model_torchscript;
const ModelEntry model_torchscript = {&MakeScriptModel};

}  // namespace ddprun
