# Several sources compiled as one (AISP_UNITY): three to four times less to compile from nothing, for builds that nobody edits in.
# The plain build stays the one that says whether each source includes what it uses.

# Compiled alone all the same: names of their anonymous namespaces, or of a friend's, stand in another source of the folder too.
set(aisp_unity_apart
  common/log.cc
  constrain/grammar_text.cc
  constrain/json.cc
  constrain/json_constraint.cc
  constrain/json_machine_scalars.cc
  constrain/pattern_parser.cc
  constrain/schema_translator_containers.cc
  hub/http.cc
  hub/pull.cc
  kernels/cuda/table/linear_choice.cc
  speculation/verify_cost.cc
  tests/common/log_test.cc
  tests/engine/eagle_test.cc
  tests/engine/engine_forced_test.cc
  tests/kernels/cpu/row_kernels_test.cc
  tests/kernels/cuda/engine_gpu_test.cc
  tests/kernels/cuda/lora_gpu_test.cc
  tests/kernels/cuda/outputs_gpu_test.cc
  tests/kernels/cuda/paged_parity_test.cc
  tests/kernels/cuda/steps_test.cc
  tests/kvcache/model/pull_checks.cc
  tests/kvcache/model/pull_model.cc
  tests/kvcache/model/pull_model_test.cc
  tests/kvcache/tiers/tier_index_test.cc
  tests/kvcache/transport/processes_test.cc
  tests/model/invariance_test.cc
  tests/model/lora_test.cc
  tests/model/medusa_head_test.cc
  tests/model/mtp_head_test.cc
  tests/text/tokenizer_test.cc
)
list(TRANSFORM aisp_unity_apart PREPEND "${CMAKE_SOURCE_DIR}/")

# aisp_unity(<target>): where the build asks for it.
function(aisp_unity target)
  if(NOT AISP_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  set_source_files_properties(${aisp_unity_apart} TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
