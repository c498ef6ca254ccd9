"""Each rule of tools/check_layers.py against a small tree that breaks it, and against one that does not."""

import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "tools", "check_layers.py")


def check(files):
    """Exit code and output lines of the script on a tree of {path: text}."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)
        done = subprocess.run([sys.executable, SCRIPT, "--root", root], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.splitlines()


class CheckLayers(unittest.TestCase):
    def assert_offence(self, files, *expected):
        code, lines = check(files)
        self.assertEqual(code, 1, lines)
        for text in expected:
            self.assertTrue(any(text in line for line in lines), f"{text!r} not in {lines}")

    def assert_clean(self, files):
        code, lines = check(files)
        self.assertEqual(code, 0, lines)

    def test_uses_of_what_stands_below_are_clean(self):
        self.assert_clean({
            "common/result.h": "#include <string>\n",
            "router/router.cc": '#include "router/router.h"\n#include "common/result.h"\n#include "worker.pb.h"\n',
            "router/CMakeLists.txt": "aisp_library(router DEPS proto text)\n",
            "proto/CMakeLists.txt": "aisp_proto_library(proto DEPS common)\n",
            "engine/engine.h": '#include "kernels/device/dtype.h"\n',
        })

    def test_an_upward_include_is_named_with_file_and_line(self):
        self.assert_offence({"router/router.cc": '\n#include "engine/engine.h"\n'},
                            "router/router.cc:2:", "engine does not stand below router")

    def test_a_kvcache_that_sees_its_transport_is_an_offence(self):
        self.assert_offence({"kvcache/pool.h": '#include "kvcache/transport/kv_transport.h"\n'},
                            "kvcache/transport does not stand below kvcache")

    def test_the_engine_sees_no_transport(self):
        self.assert_offence({"engine/a.h": '#include "kvcache/transport/kv_transport.h"\n'}, "engine/a.h:1")

    def test_the_frontend_does_no_io(self):
        self.assert_offence({"frontend/a.h": '#include "net/io_loop.h"\n'}, "net does not stand below frontend")
        self.assert_clean({"frontend/a.h": '#include "proto/http_exchange.h"\n'})

    def test_two_types_of_one_name_are_named_with_both_places(self):
        one = "namespace aisp {\n\ninline int Two() {\n  return 2;\n}\n\nclass Arena {\n};\n\n}  // namespace aisp\n"
        self.assert_offence({"text/a.h": one, "kernels/device/b.h": one.replace("class", "struct")},
                            "text/a.h:7: aisp::Arena is another type than the one in kernels/device/b.h:7")
        self.assert_clean({"text/a.h": one, "model/b.h": one.replace("namespace aisp", "namespace aisp::wide")})
        self.assert_clean({"text/a.h": one, "model/b.h": one.replace("class Arena {\n};", "class Arena;")})

    def test_programs_that_measure_may_use_everything_and_their_library_not(self):
        self.assert_clean({"bench/programs/a.cc": '#include "tests/e2e/cluster.h"\n#include "server/process.h"\n'})
        self.assert_offence({"bench/a.cc": '#include "server/process.h"\n'}, "server does not stand below bench")

    def test_an_upward_link_is_an_offence(self):
        self.assert_offence({"router/CMakeLists.txt": "aisp_library(router\n  DEPS text engine\n  LINK ext::fmt)\n"},
                            "router links engine")
        self.assert_offence({"api/CMakeLists.txt": "target_link_libraries(aisp_api PRIVATE aisp_model)\n"},
                            "api links model")

    def test_an_include_without_its_link_is_an_offence(self):
        self.assert_offence({"api/codec.h": '#include "text/tokenizer.h"\n',
                             "api/CMakeLists.txt": "aisp_library(api DEPS common)\n",
                             "common/CMakeLists.txt": "aisp_library(common)\n"},
                            "api includes text, which is not among its CMake DEPS")

    def test_a_link_through_another_folder_covers_an_include(self):
        self.assert_clean({"api/codec.h": '#include "common/result.h"\n',
                           "api/CMakeLists.txt": "aisp_library(api DEPS text)\n",
                           "text/CMakeLists.txt": "aisp_library(text DEPS common)\n",
                           "common/CMakeLists.txt": "aisp_library(common)\n"})

    def test_a_folder_cycle_is_named(self):
        self.assert_offence({"text/a.h": '#include "api/b.h"\n', "api/b.h": '#include "text/a.h"\n'},
                            "folder cycle: api -> text -> api")

    def test_an_unknown_folder_is_an_offence(self):
        self.assert_offence({"helpers/a.h": ""}, "helpers/a.h:1: this folder is not in the layer table")

    def test_cuda_headers_stay_with_the_cuda_backend(self):
        self.assert_offence({"engine/a.cc": "#include <cuda_runtime.h>\n"}, "engine/a.cc:1", "CUDA stays in")
        self.assert_offence({"kernels/device/device.h": "#include <cuda.h>\n"}, "CUDA stays in")
        self.assert_clean({"kernels/cuda/gemm.cu": "#include <cublasLt.h>\n",
                           "kernels/device/cuda_device.cc": "#include <cuda_runtime_api.h>\n"})

    def test_backend_ifdefs_stay_in_kernels(self):
        self.assert_offence({"model/a.cc": "#ifdef AISP_HAVE_CUDA\n#endif\n"}, "an #ifdef on the backend")

    def test_grpc_stays_in_net(self):
        self.assert_offence({"decode/a.cc": '#include "kv.grpc.pb.h"\n'}, "gRPC stays in")
        self.assert_offence({"decode/CMakeLists.txt": "aisp_library(decode LINK aisp_proto_grpc)\n"}, "only net/ does gRPC")
        self.assert_clean({"net/a.cc": '#include "kv.grpc.pb.h"\n'})

    def test_getenv_is_for_config_alone(self):
        self.assert_offence({"engine/a.cc": 'auto x = std::getenv("HOME");\n'}, "engine/a.cc:1: reads the environment")
        self.assert_clean({"config/a.cc": 'auto x = std::getenv("HOME");\n',
                           "engine/a.cc": '// getenv is not for us\nconst char* s = "getenv";\n/* getenv\n getenv */\n'})

    def test_config_takes_option_headers_of_any_folder_and_nothing_else(self):
        self.assert_clean({"config/config.h": '#include "engine/engine_options.h"\n#include "router/options.h"\n'})
        self.assert_offence({"config/config.h": '#include "engine/engine.h"\n'}, "engine does not stand below config")

    def test_includes_start_at_the_root(self):
        self.assert_offence({"text/a.cc": '#include "b.h"\n'}, "write the path from the root")

    def test_a_heavy_header_may_not_reach_another_folder(self):
        files = {"api/json.h": "#include <nlohmann/json.hpp>\n", "api/codec.h": '#include "api/json.h"\n',
                 "api/codec.cc": '#include "api/codec.h"\n'}
        self.assert_clean(files)
        self.assert_offence({**files, "server/main.cc": '#include "api/codec.h"\n'},
                            "api/json.h:1: exposes the heavy header <nlohmann/json.hpp> to server/main.cc")

    def test_tests_may_use_everything(self):
        self.assert_clean({"tests/router/a_test.cc": '#include "engine/engine.h"\n#include "b.h"\ngetenv("X");\n'})


if __name__ == "__main__":
    unittest.main()
