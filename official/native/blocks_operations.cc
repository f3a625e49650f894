// The parts of a block that are bound by memory as TensorFlow's operations: each reads and writes its tensors once,
// and sums up the gradients of biases and of LayerNorm's weights on the way.
//
// Rows are cut into jobs that TensorFlow's threads take one after the other. Their number follows from the sizes
// alone, and what each of them adds up is added up in their order, so that results do not depend on the threads.

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "attention.h"
#include "blocks.h"
#include "jobs.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace bert {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

constexpr int64_t kElementsOfJob = 32768;
constexpr int64_t kRowsOfSums = 32;  // of a job that adds up columns: at least as many, so that sums are few
constexpr int64_t kMostSums = 128;

template <typename T>
T* data_of(const Tensor& tensor) {
  return reinterpret_cast<T*>(const_cast<char*>(tensor.tensor_data().data()));
}

// The rows of a tensor, which its last axis makes.
struct Rows {
  int64_t count, columns;

  explicit Rows(const TensorShape& shape)
      : count(1), columns(shape.dims() ? shape.dim_size(shape.dims() - 1) : 1) {
    for (int axis = 0; axis + 1 < shape.dims(); ++axis) count *= shape.dim_size(axis);
  }

  int64_t of_job() const { return std::max<int64_t>(1, kElementsOfJob / std::max<int64_t>(1, columns)); }
};

// Calls body(job, first row, row behind the last) for all rows.
template <typename Body>
void for_rows(OpKernelContext* context, int64_t count, int64_t rows_of_job, Body body) {
  const int64_t jobs = (count + rows_of_job - 1) / rows_of_job;
  do_in_order(context, jobs, [&](int64_t job) {
    body(job, job * rows_of_job, std::min(count, (job + 1) * rows_of_job));
  });
}

// Returns the float32 numbers of a tensor of float32 or bfloat16.
std::vector<float> floats_of(const Tensor& tensor) {
  std::vector<float> numbers(tensor.NumElements());
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = tensor.dtype() == tensorflow::DT_FLOAT ? data_of<float>(tensor)[i]
                                                        : to_float(data_of<BFloat16>(tensor)[i]);
  return numbers;
}

// What the jobs of an operation add up: each in `width` numbers of its own.
class Sums {
 public:
  Sums(const Rows& rows, int64_t width)
      : rows_of_job_(std::max({kRowsOfSums, rows.of_job(), (rows.count + kMostSums - 1) / kMostSums})),
        jobs_((rows.count + rows_of_job_ - 1) / rows_of_job_),
        width_(width),
        numbers_(new float[jobs_ * width]) {}

  int64_t rows_of_job() const { return rows_of_job_; }

  // Returns the numbers of a job, zeros.
  float* of(int64_t job) {
    float* numbers = numbers_.get() + job * width_;
    std::fill(numbers, numbers + width_, 0.0f);
    return numbers;
  }

  // Writes the sums over the jobs of their numbers from `first` on, in the tensor's type.
  void add_up(int64_t first, Tensor* tensor) const {
    std::vector<float> total(tensor->NumElements(), 0.0f);
    for (int64_t job = 0; job < jobs_; ++job)
      add_to(numbers_.get() + job * width_ + first, total.size(), total.data());
    for (size_t i = 0; i < total.size(); ++i) {
      if (tensor->dtype() == tensorflow::DT_FLOAT)
        store(total[i], data_of<float>(*tensor) + i);
      else
        store(total[i], data_of<BFloat16>(*tensor) + i);
    }
  }

 private:
  int64_t rows_of_job_, jobs_, width_;
  std::unique_ptr<float[]> numbers_;
};

void check(OpKernelContext* context, bool fits, const char* what) {
  OP_REQUIRES(context, fits, tensorflow::errors::InvalidArgument(context->op_kernel().type_string(), ": ", what));
}

void check_columns(OpKernelContext* context, const Tensor& tensor, int64_t columns) {
  check(context, tensor.NumElements() == columns, "an argument has not one number for each column");
}

// The attributes `dropped` and `factor` and an input `seed` of an operation.
class DropoutArguments {
 public:
  explicit DropoutArguments(OpKernelConstruction* context) {
    OP_REQUIRES_OK(context, context->GetAttr("dropped", &dropped_));
    OP_REQUIRES_OK(context, context->GetAttr("factor", &factor_));
  }

  Dropout with_seed(OpKernelContext* context, int input) const {
    const Tensor& seed = context->input(input);
    Dropout dropout;
    check(context, seed.NumElements() == 2, "a seed is two numbers");
    if (!context->status().ok() || dropped_ == 0) return dropout;
    const int32_t* words = data_of<int32_t>(seed);
    dropout.first = static_cast<uint32_t>(words[0]);
    dropout.stride = static_cast<uint32_t>(words[1]) | 1;
    dropout.dropped = static_cast<uint32_t>(dropped_);
    dropout.factor = factor_;
    return dropout;
  }

 private:
  int64_t dropped_;
  float factor_;
};

Activation activation_of(OpKernelConstruction* context) {
  std::string name;
  const auto status = context->GetAttr("activation", &name);
  if (!status.ok()) context->CtxFailure(status);
  return name == "gelu_tanh" ? Activation::kGeluTanh : name == "gelu_erf" ? Activation::kGeluErf : Activation::kRelu;
}

template <typename T>
class BiasActivation : public OpKernel {
 public:
  explicit BiasActivation(OpKernelConstruction* context) : OpKernel(context), kind_(activation_of(context)) {}

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    const Rows rows(x.shape());
    check_columns(context, context->input(1), rows.columns);
    if (!context->status().ok()) return;
    const std::vector<float> bias = floats_of(context->input(1));
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
    for_rows(context, rows.count, rows.of_job(), [&](int64_t, int64_t begin, int64_t end) {
      const int64_t at = begin * rows.columns;
      bias_activation(kind_, data_of<T>(x) + at, bias.data(), end - begin, rows.columns, data_of<T>(*y) + at);
    });
  }

 private:
  Activation kind_;
};

template <typename T>
class BiasActivationGradient : public OpKernel {
 public:
  explicit BiasActivationGradient(OpKernelConstruction* context)
      : OpKernel(context), kind_(activation_of(context)) {}

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &upstream = context->input(2);
    const Rows rows(x.shape());
    check_columns(context, context->input(1), rows.columns);
    check(context, upstream.shape() == x.shape(), "the upstream gradient has another shape than x");
    if (!context->status().ok()) return;
    const std::vector<float> bias = floats_of(context->input(1));
    Tensor *x_gradient = nullptr, *bias_gradient = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({2, 0}, 0, x.shape(), &x_gradient));
    OP_REQUIRES_OK(context, context->allocate_output(1, context->input(1).shape(), &bias_gradient));
    Sums sums(rows, rows.columns);
    for_rows(context, rows.count, sums.rows_of_job(), [&](int64_t job, int64_t begin, int64_t end) {
      const int64_t at = begin * rows.columns;
      bias_activation_gradient(
          kind_, data_of<T>(x) + at, bias.data(), data_of<T>(upstream) + at, end - begin, rows.columns,
          data_of<T>(*x_gradient) + at, sums.of(job));
    });
    sums.add_up(0, bias_gradient);
  }

 private:
  Activation kind_;
};

// The arguments x, bias, residual, gamma, beta and seed, as inputs from 0 on.
template <typename T>
struct NormArguments {
  Rows rows;
  std::vector<float> bias;
  ResidualNorm<T> numbers;

  NormArguments(OpKernelContext* context, const DropoutArguments& dropout, float epsilon)
      : rows(context->input(0).shape()), bias(floats_of(context->input(1))) {
    for (int input : {1, 3, 4}) check_columns(context, context->input(input), rows.columns);
    check(
        context, context->input(0).shape() == context->input(2).shape(), "the residual has another shape than x");
    numbers = {data_of<T>(context->input(0)),     data_of<T>(context->input(2)), bias.data(),
               data_of<float>(context->input(3)), data_of<float>(context->input(4)),
               static_cast<int>(rows.columns),    epsilon,
               dropout.with_seed(context, 5)};
  }
};

template <typename T>
class ResidualNormForward : public OpKernel {
 public:
  explicit ResidualNormForward(OpKernelConstruction* context) : OpKernel(context), dropout_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("epsilon", &epsilon_));
  }

  void Compute(OpKernelContext* context) override {
    const NormArguments<T> in(context, dropout_, epsilon_);
    if (!context->status().ok()) return;
    const TensorShape& shape = context->input(0).shape();
    TensorShape of_moments = shape;
    of_moments.set_dim(shape.dims() - 1, 2);
    Tensor *y = nullptr, *moments = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0, 2}, 0, shape, &y));
    OP_REQUIRES_OK(context, context->allocate_output(1, of_moments, &moments));
    for_rows(context, in.rows.count, in.rows.of_job(), [&](int64_t, int64_t begin, int64_t end) {
      std::vector<float> space(in.rows.columns);
      in.numbers.forward(begin, end, data_of<T>(*y), data_of<Moments>(*moments), space.data());
    });
  }

 private:
  DropoutArguments dropout_;
  float epsilon_;
};

template <typename T>
class ResidualNormGradient : public OpKernel {
 public:
  explicit ResidualNormGradient(OpKernelConstruction* context) : OpKernel(context), dropout_(context) {}

  void Compute(OpKernelContext* context) override {
    const NormArguments<T> in(context, dropout_, 0.0f);
    const Tensor &moments = context->input(6), &upstream = context->input(7);
    const TensorShape& shape = context->input(0).shape();
    check(context, upstream.shape() == shape, "the upstream gradient has another shape than x");
    check(context, moments.NumElements() == 2 * in.rows.count, "a row has two moments");
    if (!context->status().ok()) return;
    Tensor *x_gradient = nullptr, *residual_gradient = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, shape, &x_gradient));
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({7, 2}, 1, shape, &residual_gradient));
    const int64_t columns = in.rows.columns;
    Sums sums(in.rows, 3 * columns);
    for_rows(context, in.rows.count, sums.rows_of_job(), [&](int64_t job, int64_t begin, int64_t end) {
      std::vector<float> space(2 * columns);
      in.numbers.backward(
          begin, end, data_of<T>(upstream), data_of<Moments>(moments), data_of<T>(*x_gradient),
          data_of<T>(*residual_gradient), sums.of(job), space.data());
    });
    for (int place : {0, 1, 2}) {
      Tensor* gradient = nullptr;
      const TensorShape& of_weights = context->input(place == 0 ? 1 : 2 + place).shape();
      OP_REQUIRES_OK(context, context->allocate_output(2 + place, of_weights, &gradient));
      sums.add_up(place * columns, gradient);
    }
  }

 private:
  DropoutArguments dropout_;
};

// The arguments products [B, H, L, M], mask [B, 1, L or 1, M] and seed, as inputs from 0 on.
template <typename T>
struct Scores {
  const T* products;
  const float* masks;
  Rows rows;
  int64_t rows_of_batch = 1, length = 1, batch_stride = 0, row_stride = 0;
  Dropout dropout;

  Scores(OpKernelContext* context, const DropoutArguments& arguments)
      : products(data_of<T>(context->input(0))),
        masks(data_of<float>(context->input(1))),
        rows(context->input(0).shape()),
        dropout(arguments.with_seed(context, 2)) {
    const TensorShape &shape = context->input(0).shape(), &of_mask = context->input(1).shape();
    const bool ranks = shape.dims() == 4 && of_mask.dims() == 4;
    check(context, ranks, "products and mask have four axes");
    if (!ranks) return;
    const auto fits = [&](int axis) { return of_mask.dim_size(axis) == 1 || of_mask.dim_size(axis) == shape.dim_size(axis); };
    check(
        context, fits(0) && of_mask.dim_size(1) == 1 && fits(2) && of_mask.dim_size(3) == rows.columns,
        "the mask is not one of the products");
    length = shape.dim_size(2);
    rows_of_batch = shape.dim_size(1) * length;
    row_stride = of_mask.dim_size(2) == 1 ? 0 : rows.columns;
    batch_stride = of_mask.dim_size(0) == 1 ? 0 : of_mask.dim_size(2) * rows.columns;
  }

  const float* mask(int64_t row) const {
    return masks + row / rows_of_batch * batch_stride + row % length * row_stride;
  }

  uint32_t element(int64_t row) const { return static_cast<uint32_t>(row * rows.columns); }
};

template <typename T>
class SoftmaxForward : public OpKernel {
 public:
  explicit SoftmaxForward(OpKernelConstruction* context) : OpKernel(context), dropout_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
  }

  void Compute(OpKernelContext* context) override {
    const Scores<T> in(context, dropout_);
    if (!context->status().ok()) return;
    const TensorShape& shape = context->input(0).shape();
    TensorShape of_shares = shape;
    of_shares.set_dim(3, 2);
    Tensor *weights = nullptr, *shares = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, shape, &weights));
    OP_REQUIRES_OK(context, context->allocate_output(1, of_shares, &shares));
    const int64_t columns = in.rows.columns;
    for_rows(context, in.rows.count, in.rows.of_job(), [&](int64_t, int64_t begin, int64_t end) {
      std::vector<float> space(columns);
      for (int64_t row = begin; row < end; ++row)
        data_of<Shares>(*shares)[row] = softmax(
            in.products + row * columns, in.mask(row), scale_, columns, in.dropout, in.element(row),
            data_of<T>(*weights) + row * columns, space.data());
    });
  }

 private:
  DropoutArguments dropout_;
  float scale_;
};

template <typename T>
class SoftmaxGradient : public OpKernel {
 public:
  explicit SoftmaxGradient(OpKernelConstruction* context) : OpKernel(context), dropout_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
  }

  void Compute(OpKernelContext* context) override {
    const Scores<T> in(context, dropout_);
    const Tensor &shares = context->input(3), &upstream = context->input(4);
    const TensorShape& shape = context->input(0).shape();
    check(context, upstream.shape() == shape, "the upstream gradient has another shape than the products");
    check(context, shares.NumElements() == 2 * in.rows.count, "a row has two shares");
    if (!context->status().ok()) return;
    Tensor* gradient = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({4, 0}, 0, shape, &gradient));
    const int64_t columns = in.rows.columns;
    for_rows(context, in.rows.count, in.rows.of_job(), [&](int64_t, int64_t begin, int64_t end) {
      std::vector<float> space(2 * columns);
      for (int64_t row = begin; row < end; ++row)
        softmax_gradient(
            in.products + row * columns, in.mask(row), scale_, columns, in.dropout, in.element(row),
            data_of<Shares>(shares)[row], data_of<T>(upstream) + row * columns,
            data_of<T>(*gradient) + row * columns, space.data());
    });
  }

 private:
  DropoutArguments dropout_;
  float scale_;
};

// Checks labels, inputs 0 and 1 being logits and labels.
void check_labels(OpKernelContext* context, const Rows& rows) {
  const Tensor& labels = context->input(1);
  check(context, labels.NumElements() == rows.count, "a row of logits has one label");
  if (!context->status().ok()) return;
  const int32_t* label = data_of<int32_t>(labels);
  const bool fit = std::all_of(label, label + rows.count, [&](int32_t one) { return 0 <= one && one < rows.columns; });
  check(context, fit, "a label is negative or not less than the number of classes");
}

class CrossEntropyForward : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &logits = context->input(0), &labels = context->input(1);
    const Rows rows(logits.shape());
    check_labels(context, rows);
    if (!context->status().ok()) return;
    TensorShape of_shares = logits.shape();
    of_shares.set_dim(of_shares.dims() - 1, 2);
    Tensor *losses = nullptr, *shares = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, labels.shape(), &losses));
    OP_REQUIRES_OK(context, context->allocate_output(1, of_shares, &shares));
    for_rows(context, rows.count, rows.of_job(), [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        data_of<float>(*losses)[row] = cross_entropy(
            data_of<float>(logits) + row * rows.columns, rows.columns, data_of<int32_t>(labels)[row],
            data_of<Shares>(*shares) + row);
    });
  }
};

class CrossEntropyGradient : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &logits = context->input(0), &labels = context->input(1), &shares = context->input(2),
                 &upstream = context->input(3);
    const Rows rows(logits.shape());
    check_labels(context, rows);
    check(context, shares.NumElements() == 2 * rows.count, "a row has two shares");
    check(context, upstream.NumElements() == rows.count, "a row has one upstream gradient");
    if (!context->status().ok()) return;
    Tensor* gradient = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, logits.shape(), &gradient));
    for_rows(context, rows.count, rows.of_job(), [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        cross_entropy_gradient(
            data_of<float>(logits) + row * rows.columns, rows.columns, data_of<int32_t>(labels)[row],
            data_of<Shares>(shares)[row], data_of<float>(upstream)[row],
            data_of<float>(*gradient) + row * rows.columns);
    });
  }
};

// The sizes of heads [B, H, L, K] and of their places in products [B, L, parts x H x K].
struct Layout {
  int64_t batch, length;
  Heads heads;

  Rows rows() const { return Rows(TensorShape({batch, length, columns()})); }

  int64_t columns() const { return int64_t{heads.parts} * heads.heads * heads.size; }

  // Returns where a token's numbers stand in the arrays of the parts.
  template <typename T>
  std::vector<T*> places(const std::vector<T*>& parts, int64_t token) const {
    std::vector<T*> found(parts);
    const int64_t row = token / length, place = token % length;
    for (T*& part : found) part += (row * heads.heads * length + place) * heads.size;
    return found;
  }
};

template <typename T>
class SplitHeads : public OpKernel {
 public:
  explicit SplitHeads(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("N", &parts_));
    OP_REQUIRES_OK(context, context->GetAttr("heads", &heads_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &products = context->input(0), &bias = context->input(1);
    const TensorShape& shape = products.shape();
    check(context, shape.dims() == 3 && shape.dim_size(2) % (parts_ * heads_) == 0, "heads do not divide products");
    if (!context->status().ok()) return;
    const int64_t length = shape.dim_size(1), columns = shape.dim_size(2);
    const int size = columns / (parts_ * heads_);
    const Layout layout{shape.dim_size(0), length, {parts_, heads_, size, length * size}};
    const bool is_biased = bias.NumElements() > 0;
    if (is_biased) check_columns(context, bias, columns);
    if (!context->status().ok()) return;
    const std::vector<float> added = floats_of(bias);
    std::vector<T*> parts;
    for (int part = 0; part < parts_; ++part) {
      Tensor* output = nullptr;
      const TensorShape of_part({layout.batch, heads_, length, size});
      OP_REQUIRES_OK(context, context->allocate_output(part, of_part, &output));
      parts.push_back(data_of<T>(*output));
    }
    const Rows rows = layout.rows();
    for_rows(context, rows.count, rows.of_job(), [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token)
        split(
            data_of<T>(products) + token * columns, is_biased ? added.data() : nullptr, layout.heads,
            layout.places(parts, token).data());
    });
  }

 private:
  int parts_, heads_;
};

template <typename T>
class JoinHeads : public OpKernel {
 public:
  explicit JoinHeads(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("N", &parts_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& bias = context->input(parts_);
    const TensorShape& shape = context->input(0).shape();
    check(context, shape.dims() == 4, "heads have four axes");
    std::vector<const T*> parts;
    for (int part = 0; part < parts_; ++part) {
      check(context, context->input(part).shape() == shape, "parts have different shapes");
      parts.push_back(data_of<T>(context->input(part)));
    }
    if (!context->status().ok()) return;
    const int64_t length = shape.dim_size(2), size = shape.dim_size(3);
    const int heads = shape.dim_size(1);
    const Layout layout{shape.dim_size(0), length, {parts_, heads, static_cast<int>(size), length * size}};
    const int64_t columns = layout.columns();
    const bool adds = bias.NumElements() > 0;
    if (adds) check_columns(context, bias, columns);
    if (!context->status().ok()) return;
    Tensor *products = nullptr, *sum = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {layout.batch, length, columns}, &products));
    OP_REQUIRES_OK(context, context->allocate_output(1, bias.shape(), &sum));
    const Rows rows = layout.rows();
    Sums sums(rows, adds ? columns : 0);
    for_rows(context, rows.count, sums.rows_of_job(), [&](int64_t job, int64_t begin, int64_t end) {
      float* own = adds ? sums.of(job) : nullptr;
      for (int64_t token = begin; token < end; ++token)
        join(layout.places(parts, token).data(), layout.heads, data_of<T>(*products) + token * columns, own);
    });
    if (adds) sums.add_up(0, sum);
  }

 private:
  int parts_;
};

template <typename T>
class PreNormForward : public OpKernel {
 public:
  explicit PreNormForward(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("epsilon", &epsilon_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &residual = context->input(1), &gamma = context->input(2);
    const bool adds = residual.NumElements() > 0;
    const Rows rows(x.shape());
    check_columns(context, gamma, rows.columns);
    check(context, !adds || residual.shape() == x.shape(), "the residual has another shape than x");
    if (!context->status().ok()) return;
    TensorShape of_moments = x.shape();
    of_moments.set_dim(x.dims() - 1, 2);
    Tensor *total = nullptr, *y = nullptr, *moments = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0, 1}, 0, residual.shape(), &total));
    OP_REQUIRES_OK(context, context->allocate_output(1, x.shape(), &y));
    OP_REQUIRES_OK(context, context->allocate_output(2, of_moments, &moments));
    const PreNorm<T> in{
        data_of<T>(x), adds ? data_of<T>(residual) : nullptr, data_of<float>(gamma), static_cast<int>(rows.columns),
        epsilon_};
    for_rows(context, rows.count, rows.of_job(), [&](int64_t, int64_t begin, int64_t end) {
      std::vector<float> space(rows.columns);
      in.forward(begin, end, data_of<T>(*total), data_of<T>(*y), data_of<Moments>(*moments), space.data());
    });
  }

 private:
  float epsilon_;
};

template <typename T>
class PreNormGradient : public OpKernel {
 public:
  explicit PreNormGradient(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("again", &again_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &gamma = context->input(1), &moments = context->input(2),
                 &upstream = context->input(3), &added = context->input(4);
    const bool adds = added.NumElements() > 0;
    const Rows rows(x.shape());
    check_columns(context, gamma, rows.columns);
    check(context, upstream.shape() == x.shape(), "the upstream gradient has another shape than x");
    check(context, !adds || added.shape() == x.shape(), "what is added has another shape than x");
    check(context, moments.NumElements() == 2 * rows.count, "a row has two moments");
    if (!context->status().ok()) return;
    Tensor *x_gradient = nullptr, *gamma_gradient = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({3, 4}, 0, x.shape(), &x_gradient));
    OP_REQUIRES_OK(context, context->allocate_output(1, gamma.shape(), &gamma_gradient));
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(2, again_ ? x.shape() : TensorShape(std::initializer_list<int64_t>{0}), &y));
    const PreNorm<T> in{data_of<T>(x), nullptr, data_of<float>(gamma), static_cast<int>(rows.columns), 0.0f};
    Sums sums(rows, rows.columns);
    for_rows(context, rows.count, sums.rows_of_job(), [&](int64_t job, int64_t begin, int64_t end) {
      std::vector<float> space(2 * rows.columns);
      in.backward(
          begin, end, data_of<T>(upstream), adds ? data_of<T>(added) : nullptr, data_of<Moments>(moments),
          data_of<T>(*x_gradient), again_ ? data_of<T>(*y) : nullptr, sums.of(job), space.data());
    });
    sums.add_up(0, gamma_gradient);
  }

 private:
  bool again_;
};

template <typename T>
class GatedActivation : public OpKernel {
 public:
  explicit GatedActivation(OpKernelConstruction* context) : OpKernel(context), kind_(activation_of(context)) {}

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    const Rows rows(x.shape());
    check(context, rows.columns % 2 == 0, "x has no two halves");
    if (!context->status().ok()) return;
    const int64_t columns = rows.columns / 2;
    TensorShape shape = x.shape(), of_half{2 * rows.count, columns};
    shape.set_dim(shape.dims() - 1, columns);
    // Of long texts this is the largest tensor. Where nobody else reads it, the results are the first half of it.
    const auto forwarded = context->forward_input(
        0, OpKernelContext::Params::kNoReservation, x.dtype(), x.shape(), context->input_memory_type(0),
        context->input_alloc_attr(0));
    Tensor from = forwarded == nullptr ? x : *forwarded, y;
    if (forwarded == nullptr) {
      Tensor* made = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(0, shape, &made));
      y = *made;
    } else {
      check(context, y.CopyFrom(from, of_half) && y.CopyFrom(y.Slice(0, rows.count), shape), "x is no matrix");
      if (!context->status().ok()) return;
      context->set_output(0, y);
    }
    const int64_t rows_of_job = rows.of_job(), jobs = (rows.count + rows_of_job - 1) / rows_of_job;
    const auto are_done = std::make_unique<std::atomic<bool>[]>(jobs);
    for_rows(context, rows.count, rows_of_job, [&](int64_t job, int64_t begin, int64_t end) {
      // In place, row i lies where row i / 2 was.
      if (forwarded != nullptr)
        for (int64_t other = begin / 2 / rows_of_job; other < job && other <= (end - 1) / 2 / rows_of_job; ++other)
          while (!are_done[other].load(std::memory_order_acquire)) std::this_thread::yield();
      gated_activation(
          kind_, data_of<T>(from) + begin * rows.columns, end - begin, columns, data_of<T>(y) + begin * columns);
      are_done[job].store(true, std::memory_order_release);
    });
  }

 private:
  Activation kind_;
};

template <typename T>
class GatedActivationGradient : public OpKernel {
 public:
  explicit GatedActivationGradient(OpKernelConstruction* context)
      : OpKernel(context), kind_(activation_of(context)) {}

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &upstream = context->input(1);
    const Rows rows(x.shape());
    check(context, upstream.NumElements() * 2 == x.NumElements(), "the upstream gradient is not half of x");
    if (!context->status().ok()) return;
    const int64_t columns = rows.columns / 2;
    Tensor *gradient = nullptr, *y = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, x.shape(), &gradient));
    OP_REQUIRES_OK(context, context->allocate_output(1, upstream.shape(), &y));
    for_rows(context, rows.count, rows.of_job(), [&](int64_t, int64_t begin, int64_t end) {
      const int64_t at = begin * rows.columns;
      gated_activation_gradient(
          kind_, data_of<T>(x) + at, data_of<T>(upstream) + begin * columns, end - begin, columns,
          data_of<T>(*gradient) + at, data_of<T>(*y) + begin * columns);
    });
  }

 private:
  Activation kind_;
};

// Returns memory of a job, from TensorFlow: the C library's would be in pieces after jobs of several threads.
Tensor space_of(OpKernelContext* context, int64_t count) {
  Tensor space(context->get_allocator({}), tensorflow::DT_FLOAT, TensorShape{count});
  if (!space.IsInitialized()) throw std::bad_alloc();
  return space;
}

// The arguments products [B, L, 3 x H x K], cos and sin [B or 1, L, K / 2], ids [B, L] and seed, as inputs from 0 on.
template <typename T>
struct AttentionArguments {
  int64_t batch = 0, length = 0, columns = 0, angles = 0;
  int heads, size = 0;
  RotaryAttention<T> numbers{};

  AttentionArguments(OpKernelContext* context, const DropoutArguments& arguments, int heads, int64_t reach)
      : heads(heads) {
    const TensorShape &shape = context->input(0).shape(), &of_cos = context->input(1).shape(),
                      &of_ids = context->input(3).shape();
    check(context, shape.dims() == 3 && of_cos.dims() == 3 && of_ids.dims() == 2, "wrong number of axes");
    if (!context->status().ok()) return;
    batch = shape.dim_size(0), length = shape.dim_size(1), columns = shape.dim_size(2);
    size = static_cast<int>(columns / (3 * heads));
    check(context, size > 0 && size % 2 == 0 && size * 3 * heads == columns, "heads do not divide products");
    const bool fits = (of_cos.dim_size(0) == 1 || of_cos.dim_size(0) == batch) && of_cos.dim_size(1) == length &&
                      of_cos.dim_size(2) * 2 == size && context->input(2).shape() == of_cos;
    check(context, fits, "the angles are not those of the products");
    check(context, of_ids.dim_size(0) == batch && of_ids.dim_size(1) == length, "a token has one number");
    angles = of_cos.dim_size(0) == 1 ? 0 : length * size / 2;
    numbers = {data_of<T>(context->input(0)),     data_of<float>(context->input(1)), data_of<float>(context->input(2)),
               data_of<int32_t>(context->input(3)), length, heads, size, reach, 0, arguments.with_seed(context, 4)};
  }

  // Returns the arguments of a row.
  RotaryAttention<T> row(int64_t number) const {
    RotaryAttention<T> own = numbers;
    own.products += number * length * columns;
    own.cos += number * angles;
    own.sin += number * angles;
    own.ids += number * length;
    own.first_row = static_cast<uint32_t>(number * heads * length);
    return own;
  }

  int64_t outputs() const { return length * columns / 3; }
};

template <typename T>
class RotaryAttentionForward : public OpKernel {
 public:
  explicit RotaryAttentionForward(OpKernelConstruction* context) : OpKernel(context), dropout_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("heads", &heads_));
    OP_REQUIRES_OK(context, context->GetAttr("reach", &reach_));
  }

  void Compute(OpKernelContext* context) override {
    const AttentionArguments<T> in(context, dropout_, heads_, reach_);
    if (!context->status().ok()) return;
    Tensor *outputs = nullptr, *log_sums = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {in.batch, in.length, in.columns / 3}, &outputs));
    OP_REQUIRES_OK(context, context->allocate_output(1, {in.batch, heads_, in.length}, &log_sums));
    do_in_order(context, in.batch * heads_, [&](int64_t job) {
      const int64_t row = job / heads_;
      const Tensor space = space_of(context, in.numbers.forward_space());
      in.row(row).forward(
          static_cast<int>(job % heads_), data_of<float>(space), data_of<T>(*outputs) + row * in.outputs(),
          data_of<float>(*log_sums) + row * heads_ * in.length);
    });
  }

 private:
  DropoutArguments dropout_;
  int heads_;
  int64_t reach_;
};

template <typename T>
class RotaryAttentionGradient : public OpKernel {
 public:
  explicit RotaryAttentionGradient(OpKernelConstruction* context) : OpKernel(context), dropout_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("heads", &heads_));
    OP_REQUIRES_OK(context, context->GetAttr("reach", &reach_));
  }

  void Compute(OpKernelContext* context) override {
    const AttentionArguments<T> in(context, dropout_, heads_, reach_);
    const Tensor &outputs = context->input(5), &log_sums = context->input(6), &upstream = context->input(7);
    if (!context->status().ok()) return;
    check(context, outputs.NumElements() == in.batch * in.outputs(), "outputs are not those of the products");
    check(context, upstream.shape() == outputs.shape(), "the upstream gradient has another shape than outputs");
    check(context, log_sums.NumElements() == in.batch * heads_ * in.length, "a row of scores has one sum");
    if (!context->status().ok()) return;
    Tensor* gradient = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(0).shape(), &gradient));
    do_in_order(context, in.batch * heads_, [&](int64_t job) {
      const int64_t row = job / heads_, at = row * in.outputs();
      const Tensor space = space_of(context, in.numbers.backward_space());
      in.row(row).backward(
          static_cast<int>(job % heads_), data_of<float>(space), data_of<T>(outputs) + at,
          data_of<float>(log_sums) + row * heads_ * in.length, data_of<T>(upstream) + at,
          data_of<T>(*gradient) + row * in.length * in.columns);
    });
  }

 private:
  DropoutArguments dropout_;
  int heads_;
  int64_t reach_;
};

#define BERT_SHAPES(...) SetShapeFn([](InferenceContext* shapes) { __VA_ARGS__; })

// Returns the shape `first` with a last axis of two.
auto set_pairs(InferenceContext* shapes, int output) {
  ShapeHandle rows, pairs;
  auto status = shapes->Subshape(shapes->input(0), 0, -1, &rows);
  if (status.ok()) status = shapes->Concatenate(rows, shapes->Vector(2), &pairs);
  if (status.ok()) shapes->set_output(output, pairs);
  return status;
}

// Sets the shapes of the parts of BertSplitHeads.
auto set_heads(InferenceContext* shapes) {
  int parts = 0, heads = 0;
  auto status = shapes->GetAttr("N", &parts);
  if (status.ok()) status = shapes->GetAttr("heads", &heads);
  ShapeHandle products;
  if (status.ok()) status = shapes->WithRank(shapes->input(0), 3, &products);
  tensorflow::shape_inference::DimensionHandle size;
  if (status.ok()) status = shapes->Divide(shapes->Dim(products, 2), parts * heads, true, &size);
  if (!status.ok()) return status;
  const auto batch = shapes->Dim(products, 0), length = shapes->Dim(products, 1);
  for (int part = 0; part < parts; ++part)
    shapes->set_output(part, shapes->MakeShape({batch, shapes->MakeDim(heads), length, size}));
  return status;
}

// Sets the shapes of the results of BertJoinHeads.
auto set_products(InferenceContext* shapes) {
  int parts = 0;
  auto status = shapes->GetAttr("N", &parts);
  ShapeHandle heads;
  if (status.ok()) status = shapes->WithRank(shapes->input(0), 4, &heads);
  tensorflow::shape_inference::DimensionHandle columns;
  if (status.ok()) status = shapes->Multiply(shapes->Dim(heads, 1), shapes->Dim(heads, 3), &columns);
  if (status.ok()) status = shapes->Multiply(columns, parts, &columns);
  if (!status.ok()) return status;
  shapes->set_output(0, shapes->MakeShape({shapes->Dim(heads, 0), shapes->Dim(heads, 2), columns}));
  shapes->set_output(1, shapes->input(parts));
  return status;
}

// Returns the shape of an input with a last axis of its size divided.
auto set_part(InferenceContext* shapes, int64_t divisor) {
  ShapeHandle shape;
  tensorflow::shape_inference::DimensionHandle part;
  auto status = shapes->WithRankAtLeast(shapes->input(0), 1, &shape);
  if (status.ok()) status = shapes->Divide(shapes->Dim(shape, -1), divisor, true, &part);
  if (status.ok()) status = shapes->ReplaceDim(shape, -1, part, &shape);
  if (status.ok()) shapes->set_output(0, shape);
  return status;
}

// Sets the shapes of the results of BertRotaryAttention.
auto set_attention(InferenceContext* shapes) {
  int heads = 0;
  ShapeHandle products;
  auto status = shapes->GetAttr("heads", &heads);
  if (status.ok()) status = shapes->WithRank(shapes->input(0), 3, &products);
  if (status.ok()) status = set_part(shapes, 3);
  if (status.ok())
    shapes->set_output(
        1, shapes->MakeShape({shapes->Dim(products, 0), shapes->MakeDim(heads), shapes->Dim(products, 1)}));
  return status;
}

REGISTER_OP("BertPreNorm")
    .Doc("x + residual, and LayerNorm of it without a bias; of x alone where the residual is empty, as is the sum.")
    .Attr("T: {float, bfloat16}")
    .Attr("epsilon: float")
    .Input("x: T")
    .Input("residual: T")
    .Input("gamma: float")
    .Output("total: T")
    .Output("y: T")
    .Output("moments: float")
    .BERT_SHAPES(shapes->set_output(0, shapes->input(1)); shapes->set_output(1, shapes->input(0));
                 return set_pairs(shapes, 2));

REGISTER_OP("BertPreNormGradient")
    .Doc("The gradients of BertPreNorm's sum x, plus `added` where that is not empty, and of gamma; with `again` also"
         " its result, else none.")
    .Attr("T: {float, bfloat16}")
    .Attr("again: bool")
    .Input("x: T")
    .Input("gamma: float")
    .Input("moments: float")
    .Input("upstream: T")
    .Input("added: T")
    .Output("x_gradient: T")
    .Output("gamma_gradient: float")
    .Output("y: T")
    .BERT_SHAPES(bool again = false; const auto status = shapes->GetAttr("again", &again);
                 shapes->set_output(1, shapes->input(1));
                 shapes->set_output(2, again ? shapes->input(0) : shapes->Vector(0));
                 return status.ok() ? tensorflow::shape_inference::UnchangedShape(shapes) : status);

REGISTER_OP("BertGatedActivation")
    .Doc("activation(first half) * second half of the last axis.")
    .Attr("T: {float, bfloat16}")
    .Attr("activation: {'gelu_tanh', 'gelu_erf', 'relu'}")
    .Input("x: T")
    .Output("y: T")
    .BERT_SHAPES(return set_part(shapes, 2));

REGISTER_OP("BertGatedActivationGradient")
    .Attr("T: {float, bfloat16}")
    .Attr("activation: {'gelu_tanh', 'gelu_erf', 'relu'}")
    .Input("x: T")
    .Input("upstream: T")
    .Output("x_gradient: T")
    .Output("y: T")
    .BERT_SHAPES(shapes->set_output(1, shapes->input(1)); return tensorflow::shape_inference::UnchangedShape(shapes));

REGISTER_OP("BertRotaryAttention")
    .Doc("Self-attention of products [B, L, 3 x heads x K], queries and keys turned by angles [B or 1, L, K / 2], of"
         " tokens of one number, int32 [B, L], at most `reach` places apart; reach -1: of all of them. Also"
         " log(sum(exp(scores))).")
    .Attr("T: {float, bfloat16}")
    .Attr("heads: int >= 1")
    .Attr("reach: int >= -1")
    .Attr("dropped: int")
    .Attr("factor: float")
    .Input("products: T")
    .Input("cos: float")
    .Input("sin: float")
    .Input("ids: int32")
    .Input("seed: int32")
    .Output("outputs: T")
    .Output("log_sums: float")
    .BERT_SHAPES(return set_attention(shapes));

REGISTER_OP("BertRotaryAttentionGradient")
    .Attr("T: {float, bfloat16}")
    .Attr("heads: int >= 1")
    .Attr("reach: int >= -1")
    .Attr("dropped: int")
    .Attr("factor: float")
    .Input("products: T")
    .Input("cos: float")
    .Input("sin: float")
    .Input("ids: int32")
    .Input("seed: int32")
    .Input("outputs: T")
    .Input("log_sums: float")
    .Input("upstream: T")
    .Output("products_gradient: T")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

REGISTER_OP("BertBiasActivation")
    .Attr("T: {float, bfloat16}")
    .Attr("B: {float, bfloat16}")
    .Attr("activation: {'gelu_tanh', 'gelu_erf', 'relu'}")
    .Input("x: T")
    .Input("bias: B")
    .Output("y: T")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

REGISTER_OP("BertBiasActivationGradient")
    .Attr("T: {float, bfloat16}")
    .Attr("B: {float, bfloat16}")
    .Attr("activation: {'gelu_tanh', 'gelu_erf', 'relu'}")
    .Input("x: T")
    .Input("bias: B")
    .Input("upstream: T")
    .Output("x_gradient: T")
    .Output("bias_gradient: B")
    .BERT_SHAPES(shapes->set_output(1, shapes->input(1)); return tensorflow::shape_inference::UnchangedShape(shapes));

REGISTER_OP("BertResidualNorm")
    .Doc("dropped: elements are dropped whose hash is less; 0 for no dropout. factor: of those that are kept.")
    .Attr("T: {float, bfloat16}")
    .Attr("B: {float, bfloat16}")
    .Attr("dropped: int")
    .Attr("factor: float")
    .Attr("epsilon: float")
    .Input("x: T")
    .Input("bias: B")
    .Input("residual: T")
    .Input("gamma: float")
    .Input("beta: float")
    .Input("seed: int32")
    .Output("y: T")
    .Output("moments: float")
    .BERT_SHAPES(shapes->set_output(0, shapes->input(0)); return set_pairs(shapes, 1));

REGISTER_OP("BertResidualNormGradient")
    .Attr("T: {float, bfloat16}")
    .Attr("B: {float, bfloat16}")
    .Attr("dropped: int")
    .Attr("factor: float")
    .Input("x: T")
    .Input("bias: B")
    .Input("residual: T")
    .Input("gamma: float")
    .Input("beta: float")
    .Input("seed: int32")
    .Input("moments: float")
    .Input("upstream: T")
    .Output("x_gradient: T")
    .Output("residual_gradient: T")
    .Output("bias_gradient: B")
    .Output("gamma_gradient: float")
    .Output("beta_gradient: float")
    .BERT_SHAPES(shapes->set_output(1, shapes->input(0)); shapes->set_output(2, shapes->input(1));
                 shapes->set_output(3, shapes->input(3)); shapes->set_output(4, shapes->input(4));
                 return tensorflow::shape_inference::UnchangedShape(shapes));

REGISTER_OP("BertSoftmax")
    .Doc("dropout(softmax(scale * products + mask)) of products [B, H, L, M] and a mask [B, 1, L or 1, M].")
    .Attr("T: {float, bfloat16}")
    .Attr("dropped: int")
    .Attr("factor: float")
    .Attr("scale: float")
    .Input("products: T")
    .Input("mask: float")
    .Input("seed: int32")
    .Output("weights: T")
    .Output("shares: float")
    .BERT_SHAPES(shapes->set_output(0, shapes->input(0)); return set_pairs(shapes, 1));

REGISTER_OP("BertSoftmaxGradient")
    .Attr("T: {float, bfloat16}")
    .Attr("dropped: int")
    .Attr("factor: float")
    .Attr("scale: float")
    .Input("products: T")
    .Input("mask: float")
    .Input("seed: int32")
    .Input("shares: float")
    .Input("upstream: T")
    .Output("gradient: T")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

REGISTER_OP("BertCrossEntropy")
    .Input("logits: float")
    .Input("labels: int32")
    .Output("losses: float")
    .Output("shares: float")
    .BERT_SHAPES(shapes->set_output(0, shapes->input(1)); return set_pairs(shapes, 1));

REGISTER_OP("BertCrossEntropyGradient")
    .Input("logits: float")
    .Input("labels: int32")
    .Input("shares: float")
    .Input("upstream: float")
    .Output("gradient: float")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

REGISTER_OP("BertSplitHeads")
    .Doc("The parts of products [B, L, N x heads x K] plus bias, each [B, heads, L, K]. An empty bias: none.")
    .Attr("T: {float, bfloat16}")
    .Attr("B: {float, bfloat16}")
    .Attr("N: int >= 1")
    .Attr("heads: int >= 1")
    .Input("products: T")
    .Input("bias: B")
    .Output("parts: N * T")
    .BERT_SHAPES(return set_heads(shapes));

REGISTER_OP("BertJoinHeads")
    .Doc("Products [B, L, N x H x K] of parts [B, H, L, K], and the sums of their columns, in the type and shape of"
         " a bias; where that is empty, no sums.")
    .Attr("T: {float, bfloat16}")
    .Attr("B: {float, bfloat16}")
    .Attr("N: int >= 1")
    .Input("parts: N * T")
    .Input("bias: B")
    .Output("products: T")
    .Output("sums: B")
    .BERT_SHAPES(return set_products(shapes));

#define BERT_REGISTER(name, kernel)                                                                              \
  REGISTER_KERNEL_BUILDER(                                                                                       \
      Name(name).Device(tensorflow::DEVICE_CPU).TypeConstraint<float>("T"), kernel<float>);                      \
  REGISTER_KERNEL_BUILDER(                                                                                       \
      Name(name).Device(tensorflow::DEVICE_CPU).TypeConstraint<tensorflow::bfloat16>("T"), kernel<BFloat16>)

BERT_REGISTER("BertBiasActivation", BiasActivation);
BERT_REGISTER("BertBiasActivationGradient", BiasActivationGradient);
BERT_REGISTER("BertPreNorm", PreNormForward);
BERT_REGISTER("BertPreNormGradient", PreNormGradient);
BERT_REGISTER("BertGatedActivation", GatedActivation);
BERT_REGISTER("BertGatedActivationGradient", GatedActivationGradient);
BERT_REGISTER("BertRotaryAttention", RotaryAttentionForward);
BERT_REGISTER("BertRotaryAttentionGradient", RotaryAttentionGradient);
BERT_REGISTER("BertResidualNorm", ResidualNormForward);
BERT_REGISTER("BertResidualNormGradient", ResidualNormGradient);
BERT_REGISTER("BertSplitHeads", SplitHeads);
BERT_REGISTER("BertJoinHeads", JoinHeads);
BERT_REGISTER("BertSoftmax", SoftmaxForward);
BERT_REGISTER("BertSoftmaxGradient", SoftmaxGradient);
REGISTER_KERNEL_BUILDER(Name("BertCrossEntropy").Device(tensorflow::DEVICE_CPU), CrossEntropyForward);
REGISTER_KERNEL_BUILDER(Name("BertCrossEntropyGradient").Device(tensorflow::DEVICE_CPU), CrossEntropyGradient);

}  // namespace
}  // namespace bert
