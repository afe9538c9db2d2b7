// Copies of large memory that nobody reads soon.
#pragma once

#include <cstddef>

namespace ddprun {

// As memcpy, on the same conditions, but around the caches (non-temporal stores): the lines of
// `to` are not fetched before they are overwritten, and what the caller has in the caches stays
// there. Other threads see it all when they are told of its end in the usual way. Any thread.
void StreamCopy(void* to, const void* from, size_t bytes);

}  // namespace ddprun
