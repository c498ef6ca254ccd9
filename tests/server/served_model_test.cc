// A tokenizer with more tokens than its model: text with such a token is refused by name.
#include "server/served_model.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "common/log.h"
#include "frontend/prepared_request.h"
#include "frontend/text_service.h"
#include "server/arithmetic.h"
#include "server/backend.h"
#include "tests/support/temp_files.h"

namespace aisp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ServedModel, TextOfTokensIsRefusedBeforeItFillsTheMemory) {
  Config config;
  config.model.path = AISP_SOURCE_DIR "/models/story-7m";
  config.http.max_answer = 64 << 10;
  const auto model = LoadServedModel(config);
  ASSERT_TRUE(model) << model.error().message;
  TokenId longest = 0;
  for (TokenId id = 0; id < (*model)->limits.vocab_size; ++id) {
    if ((*model)->tokenizer->IdToPiece(id).size() > (*model)->tokenizer->IdToPiece(longest).size())
      longest = id;
  }
  const size_t bytes = (*model)->tokenizer->IdToPiece(longest).size();
  DetokenizeRequest request;
  request.tokens.assign((64 << 10) / bytes, longest);
  EXPECT_TRUE(Detokenize(**model, request));
  request.tokens.resize(request.tokens.size() + 1 + 64, longest);
  const auto refused = Detokenize(**model, request);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("http.max_answer"));
}

TEST(ServedModel, TokensOfATextAreRefusedBeforeTheyFillTheMemory) {
  Config config;
  config.model.path = AISP_SOURCE_DIR "/models/story-7m";
  config.http.max_answer = 64 << 10;
  const auto model = LoadServedModel(config);
  ASSERT_TRUE(model) << model.error().message;
  TokenizeRequest request;
  request.prompt = std::string(12 << 10, '1');
  const auto served = Tokenize(**model, request);
  ASSERT_TRUE(served) << served.error().message;
  request.return_token_strs = true;
  const auto refused = Tokenize(**model, request);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, AllOf(HasSubstr("65536"), HasSubstr("http.max_answer"),
                                             HasSubstr("return_token_strs")));
  EXPECT_EQ(refused.error().param, "prompt");
  request.return_token_strs = false;
  request.prompt = std::string(64 << 10, '1');
  EXPECT_FALSE(Tokenize(**model, request));
}

TEST(ServedModel, MessagesThatATemplateCannotRenderInItsBoundsAreARequestsFault) {
  const TempFile file("endless.jinja",
                      "{% for a in range(90000) %}{% for b in messages %}{% for c in range(90000) "
                      "%}{% endfor %}{% endfor %}{% endfor %}");
  Config config;
  config.model.path = AISP_SOURCE_DIR "/models/story-7m";
  config.model.chat_template = file.path();
  const auto model = LoadServedModel(config);
  ASSERT_TRUE(model) << model.error().message;
  ChatRequest request;
  request.messages = Value(Value::List{Value(Value::Map{{"role", "user"}, {"content", "a"}})});
  const auto refused = (*model)->RenderChat(request, true);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("steps"));
}

// Messages, tools and template variables together; each alone would fit.
TEST(ServedModel, AllTextOfAChatCountsBeforeItIsRendered) {
  Config config;
  config.model.path = AISP_SOURCE_DIR "/models/story-7m";
  const auto model = LoadServedModel(config);
  ASSERT_TRUE(model) << model.error().message;
  const std::string most((*model)->max_text_bytes * 2 / 5, 'x');
  const auto prepare = [&](bool messages, bool tools, bool variables) {
    ChatRequest request;
    request.messages = Value(Value::List{
        Value(Value::Map{{"role", "user"}, {"content", messages ? most : std::string("a")}})});
    if (tools) request.tools = Value(Value::List{Value(Value::Map{{"description", most}})});
    if (variables) request.template_variables = Value(Value::Map{{most, "a"}});
    const auto prepared = Prepare(**model, std::move(request));
    return prepared ? std::string() : prepared.error().message;
  };
  const auto refused = HasSubstr("bytes are more than this model's context");
  EXPECT_THAT(prepare(true, true, true), refused);
  ChatRequest numbers;
  numbers.messages = Value(Value::List{Value(Value::Map{{"role", "user"}, {"content", "a"}})});
  numbers.template_variables =
      Value(Value::Map{{"a", Value(Value::List((*model)->max_text_bytes, Value(true)))}});
  const auto prepared = Prepare(**model, std::move(numbers));
  ASSERT_FALSE(prepared);
  EXPECT_THAT(prepared.error().message, refused);
  EXPECT_THAT(prepare(true, false, false), ::testing::Not(refused));
  EXPECT_THAT(prepare(false, true, true), ::testing::Not(refused));
}

TEST(ServedModel, Fp8ActivationsFollowTheirFlag) {
  const auto load = [](const char* quantization, const char* activations) {
    Config config;
    config.model.path = AISP_SOURCE_DIR "/models/story-7m";
    config.model.quantization = quantization;
    config.model.fp8_activations = activations;
    auto loaded = LoadServedModel(config);
    EXPECT_TRUE(loaded);
    return std::move(*loaded);
  };
  EXPECT_EQ(load("auto", "auto")->fp8_activation_rows, 0);
  EXPECT_EQ(load("auto", "on")->fp8_activation_rows, 0);  // no FP8 weights
  EXPECT_EQ(load("fp8", "on")->fp8_activation_rows, 1);
  EXPECT_EQ(load("fp8", "off")->fp8_activation_rows, 0);
  EXPECT_GT(load("fp8", "auto")->fp8_activation_rows, 1);
}

ArithmeticFacts OnGpu(std::string_view quantization, int32_t fp8_activation_rows) {
  ArithmeticFacts facts;
  facts.device = "cuda";
  facts.compute = facts.activations = facts.kv = DType::kBF16;
  facts.quantization = quantization;
  facts.multiplies = [](WeightFormat) { return true; };
  facts.fp8_activation_rows = fp8_activation_rows;
  facts.block_tokens = 64;
  return facts;
}

TEST(Arithmetic, NamesWhatTheDeviceComputesIn) {
  EXPECT_EQ(DescribeArithmetic(OnGpu("auto", 0)),
            "cuda bf16; weights bf16; activations bf16; kv bf16 in blocks of 64");
  EXPECT_EQ(DescribeArithmetic(OnGpu("fp8", 65)),
            "cuda bf16; weights fp8; activations bf16, fp8 from 65 rows; kv bf16 in blocks of 64");
  EXPECT_NE(DescribeArithmetic(OnGpu("fp8", 1)), DescribeArithmetic(OnGpu("fp8", 65)));
  EXPECT_NE(DescribeArithmetic(OnGpu("fp8", 0)), DescribeArithmetic(OnGpu("fp8", 65)));
  ArithmeticFacts stored = OnGpu("auto", 0);
  stored.stored = QuantFormat::kNvfp4;
  EXPECT_THAT(DescribeArithmetic(stored), HasSubstr("weights nvfp4"));
  stored.multiplies = [](WeightFormat format) { return format == WeightFormat::kCompute; };
  EXPECT_THAT(DescribeArithmetic(stored), HasSubstr("weights nvfp4 widened to bf16"));
}

// A CPU does not quantise on load, so these settings change nothing there, and workers with and
// without them are peers.
TEST(Arithmetic, OfACpuDoesNotDependOnSettingsForGpus) {
  const auto arithmetic = [](const char* quantization, const char* activations) {
    Config config;
    config.model.path = AISP_SOURCE_DIR "/models/story-7m";
    config.model.quantization = quantization;
    config.model.fp8_activations = activations;
    config.model.device = "cpu";
    config.engine.kv_blocks = 256;
    const auto served = LoadServedModel(config);
    EXPECT_TRUE(served);
    auto backend = MakeBackend(config, **served);
    EXPECT_TRUE(backend);
    return WorkerFingerprint(config, **served, *backend).arithmetic();
  };
  const std::string plain = arithmetic("auto", "auto");
  EXPECT_EQ(plain, "cpu f32; weights f32; activations f32; kv bf16");
  for (const char* quantization : {"fp8", "nvfp4"}) {
    for (const char* activations : {"auto", "on", "off"})
      EXPECT_EQ(arithmetic(quantization, activations), plain) << quantization << activations;
  }
}

class TokensBeyond : public ::testing::Test {
 protected:
  void SetUp() override {
    Config config;
    config.model.path = AISP_SOURCE_DIR "/models/story-7m";
    auto loaded = LoadServedModel(config);
    ASSERT_TRUE(loaded) << loaded.error().message;
    model_ = std::move(*loaded);
    const auto ids = model_->EncodePrompt(Prompt(std::string("Once upon a time there was a fox")));
    ASSERT_TRUE(ids);
    greatest_ = *std::max_element(ids->begin(), ids->end());
    piece_ = std::string(model_->tokenizer->IdToPiece(greatest_));
    // As in a checkpoint whose embedding ends just below that token.
    model_->vocabulary = greatest_;
  }

  std::unique_ptr<ServedModel> model_;
  TokenId greatest_ = 0;
  std::string piece_;
};

TEST_F(TokensBeyond, APromptWithOneIsRefusedAndTheTokenNamed) {
  CompletionRequest request;
  request.prompts = {Prompt(std::string("Once upon a time there was a fox"))};
  const auto prepared = Prepare(*model_, std::move(request));
  ASSERT_FALSE(prepared);
  EXPECT_EQ(prepared.error().code, Code::kInvalidArgument);
  EXPECT_EQ(prepared.error().param, "prompt");
  EXPECT_THAT(prepared.error().message, HasSubstr(piece_));
  EXPECT_THAT(prepared.error().message, HasSubstr(std::to_string(greatest_)));
}

TEST_F(TokensBeyond, AChatWithOneIsRefusedToo) {
  model_->vocabulary = 1;
  ChatRequest request;
  Value::Map message;
  message.Set("role", Value(std::string("user")));
  message.Set("content", Value(std::string("a fox")));
  request.messages = Value(Value::List{Value(std::move(message))});
  const auto prepared = Prepare(*model_, std::move(request));
  ASSERT_FALSE(prepared);
  EXPECT_EQ(prepared.error().code, Code::kInvalidArgument);
  EXPECT_EQ(prepared.error().param, "messages");
}

TEST_F(TokensBeyond, IdsOfTheClientAreCheckedAsWell) {
  CompletionRequest request;
  request.prompts = {Prompt(std::vector<TokenId>{0, greatest_})};
  // The parser refuses them by the served vocabulary; tokens that bypass it are refused here.
  const auto prepared = Prepare(*model_, std::move(request));
  ASSERT_FALSE(prepared);
  EXPECT_THAT(prepared.error().message, HasSubstr(std::to_string(greatest_)));
}

// The built-in model, whose tokenizer has two tokens more than there are embeddings.
TEST(ServedModel, ATokenizerThatKnowsMoreThanItsModelIsLoggedWithTheirNumber) {
  const TempFolder folder;
  const std::filesystem::path from = AISP_SOURCE_DIR "/models/story-7m";
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    if (entry.path().filename() != "tokenizer.json")
      std::filesystem::create_symlink(entry.path(), folder.path() / entry.path().filename());
  }
  std::ifstream in(from / "tokenizer.json");
  auto tokenizer = nlohmann::json::parse(in);
  auto added = tokenizer["added_tokens"][0];
  for (const int id : {4096, 4097}) {
    added["id"] = id;
    added["content"] = "<|beyond" + std::to_string(id) + "|>";
    tokenizer["added_tokens"].push_back(added);
  }
  folder.Write("tokenizer.json", tokenizer.dump());
  const TempFile log("beyond.log", "");
  const auto said = [&log](const std::string& path) {
    const int fd = open(log.path().c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
    {
      const LogSession session({.fd = fd});
      Config config;
      config.model.path = path;
      EXPECT_TRUE(LoadServedModel(config));
    }
    close(fd);
    return log.Read();
  };
  EXPECT_THAT(said(folder.path()),
              AllOf(HasSubstr("tokens beyond the model's vocabulary"), HasSubstr("tokens=2"),
                    HasSubstr("vocabulary=4096"), HasSubstr("<|beyond4096|>")));
  EXPECT_THAT(said(from), Not(HasSubstr("beyond")));
}

}  // namespace
}  // namespace aisp
