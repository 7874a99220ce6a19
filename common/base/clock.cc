#include "common/base/clock.h"

#include <chrono>

namespace tandem::base {
namespace {

class MachineClock : public Clock {
 public:
  int64_t NowUs() const override { return Since<std::chrono::steady_clock>(); }
  int64_t NowNs() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  int64_t UnixUs() const override { return Since<std::chrono::system_clock>(); }

 private:
  template <typename C>
  static int64_t Since() {
    return std::chrono::duration_cast<std::chrono::microseconds>(C::now().time_since_epoch())
        .count();
  }
};

}  // namespace

const Clock& SystemClock() {
  static const MachineClock clock;
  return clock;
}

}  // namespace tandem::base
