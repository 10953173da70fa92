package standin

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// longestGrace stands for grace periods without end. Some write them with more
// seconds than a Duration holds, and would overflow to a negative one.
const longestGrace = 10 * 365 * 24 * time.Hour

// GraceOf is how long a pod takes to terminate: its whole grace period, 30 seconds by
// default. A pod that ends sooner is not foreseen.
func GraceOf(p *v1.Pod) time.Duration {
	seconds := ptr.Deref(p.Spec.TerminationGracePeriodSeconds, v1.DefaultTerminationGracePeriodSeconds)
	return time.Duration(min(seconds, int64(longestGrace/time.Second))) * time.Second
}
