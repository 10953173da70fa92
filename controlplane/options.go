// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"time"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	netutils "k8s.io/utils/net"

	"github.com/berth-k8s/berth/internal/admission"
)

// Options configures the location of the state, the listener, and deviations from the defaults. The
// zero value plus DataDir is a complete configuration.
type Options struct {
	// DataDir holds all state. It is created if missing, readable by its owner only.
	DataDir string
	// Port is the API's port on 127.0.0.1. 0: the port last used by this data directory, or another
	// port if that one is occupied.
	Port int
	// FeatureGates holds Kubernetes gates that differ from Berth's defaults (see
	// DefaultFeatureGates). They belong to the whole process: concurrent control planes in one
	// process must agree on them.
	FeatureGates map[string]bool
	// RuntimeConfig switches API groups and versions on or off ("api/alpha": "true"), like
	// kube-apiserver's flag.
	RuntimeConfig map[string]string
	// Controllers selects controllers like kube-controller-manager's flag: "*" is
	// DefaultControllers, "name" adds a controller, "-name" omits one. Empty: "*".
	Controllers []string
	// ServiceClusterIPRange is the range of Service addresses. Empty: 10.96.0.0/12.
	ServiceClusterIPRange string
	// TLSNames holds additional names and addresses used by clients to reach the API indirectly;
	// the certificate includes them.
	TLSNames []string
	// EventTTL is the retention of Events. 0: one hour, upstream's default.
	EventTTL time.Duration
	// EtcdCompaction is the interval between compactions of old object versions. 0: every 5
	// minutes, upstream's default. An API server first compacts after two intervals.
	EtcdCompaction time.Duration
	// NodeBootstrap writes DataDir/node-bootstrap.kubeconfig, which lets a machine request a node
	// certificate.
	NodeBootstrap bool
	// GuardEvictions grants the permissions to guard evictions, and writes
	// DataDir/webhook.kubeconfig.
	GuardEvictions bool
	// Profiling serves /debug/pprof to users permitted by RBAC.
	Profiling bool
	// Rules configures Berth's admission rules.
	Rules admission.Config
	// UpstreamAdmission disables Berth's rules and keeps the upstream plugins that they replace.
	UpstreamAdmission bool
	// EnableAdmission and DisableAdmission name upstream plugins to switch on or off against their
	// default.
	EnableAdmission, DisableAdmission []string
	// Admission holds additional compiled-in admission plugins, which may replace upstream ones.
	Admission []AdmissionPlugin
	// Verbosity is the verbosity of the log, like klog's -v.
	Verbosity int
	// LogTo receives the log instead of <data-dir>/controlplane.log.
	LogTo io.Writer
}

// DefaultFeatureGates returns Berth's deviations from Kubernetes' default gates. Each call returns
// a new map.
func DefaultFeatureGates() map[string]bool {
	return map[string]bool{
		// This gate permits Gt and Lt in tolerations, which the API otherwise refuses.
		"TaintTolerationComparisonOperators": true,
		// This gate lets API servers of several versions forward requests to each other; this
		// cluster has a single API server.
		"UnknownVersionInteroperabilityProxy": false,
	}
}

const (
	defaultServiceClusterIPRange = "10.96.0.0/12"
	defaultEventTTL              = time.Hour
)

// withDefaults fills in empty fields. The caller's gates take precedence over Berth's.
func (o Options) withDefaults() Options {
	gates := DefaultFeatureGates()
	maps.Copy(gates, o.FeatureGates)
	// Do not modify the caller's map.
	o.FeatureGates = gates
	o.ServiceClusterIPRange = cmp.Or(o.ServiceClusterIPRange, defaultServiceClusterIPRange)
	o.EventTTL = cmp.Or(o.EventTTL, defaultEventTTL)
	if len(o.Controllers) == 0 {
		o.Controllers = []string{"*"}
	}
	return o
}

// Validate returns an error for the first invalid option. It does not depend on the machine's
// state. The error contains the flag of berth-controlplane, the value and the allowed values.
func (o Options) Validate() error {
	if o.DataDir == "" {
		return fmt.Errorf("--data-dir: must not be empty")
	}
	if o.Port < 0 || o.Port > 65535 {
		return fmt.Errorf("--port: %d: must be between 1 and 65535, or 0 to have one picked", o.Port)
	}
	if o.EventTTL < 0 {
		return fmt.Errorf("--event-ttl: %v: must not be negative", o.EventTTL)
	}

	if o.EtcdCompaction < 0 {
		return fmt.Errorf("--etcd-compaction-interval: %v: must not be negative", o.EtcdCompaction)
	}
	if o.ServiceClusterIPRange != "" {
		if _, _, err := netutils.ParseCIDRSloppy(o.ServiceClusterIPRange); err != nil {
			return fmt.Errorf("--service-cluster-ip-range: %q: must be a CIDR such as %s", o.ServiceClusterIPRange,
				defaultServiceClusterIPRange)
		}
	}

	return cmp.Or(o.validateAdmission(), validateFeatureGates(o.FeatureGates), validateControllers(o.Controllers))
}

// validateFeatureGates tries the gates on a copy.
func validateFeatureGates(gates map[string]bool) error {
	// Use a copy to leave the process's gates unset until all options are validated. Set the gates
	// together, since they depend on each other; the error names the wrong one.
	if err := utilfeature.DefaultMutableFeatureGate.DeepCopy().SetFromMap(gates); err != nil {
		return fmt.Errorf("--feature-gates: %w", err)
	}
	return nil
}

// validateControllers rejects unknown controller names, with or without the leading "-".
func validateControllers(names []string) error {
	known := knownControllers()
	for _, name := range names {
		if bare := strings.TrimPrefix(name, "-"); bare != "*" && !known.Has(bare) {
			return fmt.Errorf("--controllers: %q: unknown controller; known controllers: %s",
				bare, strings.Join(known.UnsortedList(), ", "))
		}
	}
	return nil
}

// gatesInUse holds the feature gates agreed on by the running control planes; Kubernetes keeps them
// once per process.
var gatesInUse struct {
	sync.Mutex
	users int
	gates map[string]bool
	undo  map[string]bool // values before the first claim
}

// claimGates sets the process's gates, unless another control plane runs with different gates.
// release restores them. claimGates must precede every read of a gate, and release must follow the
// end of all readers.
func claimGates(gates map[string]bool) (release func(), err error) {
	g := &gatesInUse
	g.Lock()
	defer g.Unlock()
	// Changing a gate under a running control plane would change its behaviour half-way.
	if g.users > 0 && !maps.Equal(g.gates, gates) {
		return nil, fmt.Errorf("feature gates %v: another control plane in this process runs with %v: stop it first", gates, g.gates)
	}
	if g.users == 0 {
		undo := map[string]bool{}
		// Record only the gates about to be set.
		for feature := range utilfeature.DefaultMutableFeatureGate.GetAll() {
			if _, set := gates[string(feature)]; set {
				undo[string(feature)] = utilfeature.DefaultFeatureGate.Enabled(feature)
			}
		}
		if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(gates); err != nil {
			return nil, err
		}
		g.gates, g.undo = maps.Clone(gates), undo
	}
	g.users++
	return sync.OnceFunc(func() {
		g.Lock()
		defer g.Unlock()
		if g.users--; g.users == 0 {
			// The old values were valid; a gate that cannot be restored (locked meanwhile) already
			// has its only value.
			_ = utilfeature.DefaultMutableFeatureGate.SetFromMap(g.undo)
		}
	}), nil
}
