package controlplane

import (
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	netutils "k8s.io/utils/net"

	"github.com/berth-k8s/berth/internal/admission"
)

// Options say where the state is, where to listen, and what differs from the defaults. The zero
// value but for DataDir is a complete configuration.
type Options struct {
	// DataDir holds all state; it is created if missing, readable by its owner only.
	DataDir string
	// Port on 127.0.0.1 for the API. 0: the port this data directory used last, another one if that
	// is taken now.
	Port int
	// FeatureGates of Kubernetes that differ from Berth's defaults (see DefaultFeatureGates). They
	// are a property of the whole process: control planes running in one process at the same time
	// must agree on them.
	FeatureGates map[string]bool
	// RuntimeConfig switches API groups and versions on or off ("api/alpha": "true"), as
	// kube-apiserver's flag.
	RuntimeConfig map[string]string
	// Controllers selects as kube-controller-manager's flag does: "*" stands for
	// DefaultControllers, "name" adds one, "-name" leaves one out. Empty: "*".
	Controllers []string
	// ServiceClusterIPRange is where Services get their addresses. Empty: 10.96.0.0/12.
	ServiceClusterIPRange string
	// TLSNames are names and addresses by which clients reach the API other than directly: the
	// certificate is for them, too.
	TLSNames []string
	// EventTTL is how long Events are kept. 0: one hour, upstream's default.
	EventTTL time.Duration
	// EtcdCompaction is how often old versions of objects are given up. 0: every 5 minutes,
	// upstream's default. An API server does it for the first time after two of these.
	EtcdCompaction time.Duration
	// NodeBootstrap writes DataDir/node-bootstrap.kubeconfig, with which a machine can ask for the
	// certificate of a node.
	NodeBootstrap bool
	// Profiling serves /debug/pprof to those whom RBAC lets in.
	Profiling bool
	// Rules are what Berth's admission rules are set to.
	Rules admission.Config
	// UpstreamAdmission leaves Berth's rules out: upstream's own plugins stand in their places, as
	// they are by default.
	UpstreamAdmission bool
	// EnableAdmission and DisableAdmission name upstream's plugins that are on or off other than by
	// default.
	EnableAdmission, DisableAdmission []string
	// Admission plugins compiled in beside these, or in place of some of upstream's.
	Admission []AdmissionPlugin
	// Verbosity of the log, as klog's -v.
	Verbosity int
	// LogTo receives the log in place of <data-dir>/controlplane.log.
	LogTo io.Writer
}

// DefaultFeatureGates are the gates that Berth sets other than Kubernetes does. The map is new with
// each call.
func DefaultFeatureGates() map[string]bool {
	return map[string]bool{
		// Gt and Lt in tolerations; the API refuses them without.
		"TaintTolerationComparisonOperators": true,
		// Lets API servers of several versions pass requests to each other; here is one.
		"UnknownVersionInteroperabilityProxy": false,
	}
}

const (
	defaultServiceClusterIPRange = "10.96.0.0/12"
	defaultEventTTL              = time.Hour
)

// withDefaults fills in what is empty. Gates of the caller win over Berth's.
func (o Options) withDefaults() Options {
	gates := DefaultFeatureGates()
	maps.Copy(gates, o.FeatureGates)
	// A new map: the caller's stays as it is.
	o.FeatureGates = gates
	if o.ServiceClusterIPRange == "" {
		o.ServiceClusterIPRange = defaultServiceClusterIPRange
	}
	if o.EventTTL == 0 {
		o.EventTTL = defaultEventTTL
	}
	if len(o.Controllers) == 0 {
		o.Controllers = []string{"*"}
	}
	return o
}

// Validate reports the first option that cannot be: a mistake of the caller, whatever the state of
// the machine. It names the flag of berth-controlplane, the value and what is allowed.
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

	if err := o.validateAdmission(); err != nil {
		return err
	}
	if err := validateFeatureGates(o.FeatureGates); err != nil {
		return err
	}
	return validateControllers(o.Controllers)
}

// validateFeatureGates tries the gates on a copy.
func validateFeatureGates(gates map[string]bool) error {
	// A copy, so that nothing is set for the process before everything is known to be right. All at
	// once, since gates depend on each other; the error names the one that is wrong.
	if err := utilfeature.DefaultMutableFeatureGate.DeepCopy().SetFromMap(gates); err != nil {
		return fmt.Errorf("--feature-gates: %w", err)
	}
	return nil
}

// validateControllers rejects names that no controller has, with or without the leading "-".
func validateControllers(names []string) error {
	known := knownControllers()
	for _, name := range names {
		if bare := strings.TrimPrefix(name, "-"); bare != "*" && !known.Has(bare) {
			return fmt.Errorf("--controllers: %q: no such controller; there are %s", bare, strings.Join(known.UnsortedList(), ", "))
		}
	}
	return nil
}
