#include "router/policy/round_robin.h"

namespace tandem::router {
namespace {

class RoundRobin : public Policy {
 public:
  int Pick(std::span<const WorkerView> candidates) override {
    // The next index above the last one, else the lowest: a worker that joins or leaves does not
    // change the turn of the others.
    int lowest = candidates[0].index;
    int next = -1;
    for (const WorkerView& worker : candidates) {
      lowest = worker.index < lowest ? worker.index : lowest;
      if (worker.index > last_ && (next < 0 || worker.index < next)) {
        next = worker.index;
      }
    }
    last_ = next >= 0 ? next : lowest;
    return last_;
  }

 private:
  int last_ = -1;
};

}  // namespace

std::unique_ptr<Policy> MakeRoundRobin() { return std::make_unique<RoundRobin>(); }

}  // namespace tandem::router
