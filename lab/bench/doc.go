// Package bench measures the real binary on a bed: what genesis, join and push take, and what hub and agent hold of memory when idle. Each
// figure stands beside a reference taken in the same run. What must hold is asserted in lab/scenarios, never here.
package bench
