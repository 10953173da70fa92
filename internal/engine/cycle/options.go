package cycle

import (
	"time"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// DefaultSearchLimit is the default of Options.SearchLimit.
const DefaultSearchLimit = gang.DefaultSearchLimit

// Options configure a core. The zero value is a core without profiles, which New refuses; all other
// fields have a useful zero.
type Options struct {
	Profiles []Profile
	// Seed determines all random choices: which of several best nodes is taken, and which attempts
	// are timed.
	Seed uint64
	// FirstBackoff, LastBackoff and MaxWait configure the queue; 0 means its default.
	FirstBackoff, LastBackoff, MaxWait time.Duration
	// Shadow makes the core compare where other schedulers place the pods of its profiles. Such a
	// core never leads.
	Shadow bool
	// Observer, if set, is called with what happens, for metrics. Stopwatch, if set, is the clock
	// that measures durations for it. Neither influences decisions.
	Observer  Observer
	Stopwatch func() time.Time
	// Objects, if set, is shown the API objects of nodes and pods.
	Objects Objects
	// Groups tells which features of pod groups are on. SearchLimit bounds the search for a
	// placement of a group whose pods differ, and how many domains of a topology key an attempt
	// tries, in judgements of a node; 0 means [DefaultSearchLimit].
	Groups      groups.Gates
	SearchLimit int
	// Unhurried attempts for groups do not end because others wait: for forecasts.
	Unhurried bool
	Disabled  Disabled
	// PrepareAside: what a plugin has to compute about a pod before the pod is decided is asked
	// aside; see [Ask] and [plugins.Preparer]. Else it is computed by the goroutine that decides,
	// when it is needed.
	PrepareAside bool
	// Prefer, if set, breaks ties between nodes in place of chance; see [decide.Decider].
	Prefer func(*cluster.Pod) string
}

// Disabled are features of the cycle that are on unless a feature gate of upstream disables them.
type Disabled struct {
	// PopFromBackoff (SchedulerPopFromBackoffQ): an idle scheduler does not decide rejected pods
	// before their back-off is over, and one whose victims have gone waits, too.
	PopFromBackoff bool `json:"popFromBackoff,omitempty"`
	// Expectation (NominatedNodeNameForExpectation): the node of a pod that waits at Permit, or for
	// which objects are written, is not written to nominatedNodeName.
	Expectation bool `json:"expectation,omitempty"`
	// DeviceTaintRules (DRADeviceTaintRules): they are not followed, and taint no devices.
	DeviceTaintRules bool `json:"deviceTaintRules,omitempty"`
}
