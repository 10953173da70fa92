// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/metrics"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/lead"
	"github.com/berth-k8s/berth/internal/kube/serve"
)

// securePort is kube-scheduler's default for --secure-port.
const securePort = 10259

// Flags holds the command's flags. Current and former flags of kube-scheduler keep their names and
// meanings. The command itself reads the exported fields; it gets all other settings through
// Settings, Source, Profiles and other methods, which also consider the configuration file.
type Flags struct {
	Set *pflag.FlagSet

	cluster connect.Flags // Settings.Cluster, before the file is applied
	Serving serve.Options
	lead    lead.Options
	Logs    *logs.Options
	Metrics *metrics.Options

	config        string // a file; "": upstream's defaults, or a legacy source
	WriteConfigTo string
	legacy        legacyFlags     // translated into a configuration; see Source
	gates         map[string]bool // only the gates set by the flag
	Groups        groups.Gates    // set by Validate
	SearchLimit   int             // number of node evaluations; see cycle.Options

	qps                            float32 // 0: no limit
	burst                          int     // 0: twice qps
	contentType                    string  // of requests to the API server
	profiling, contentionProfiling bool
	MaxUnschedulable               time.Duration // maximum wait in the queue without a helpful event
	AddressFile                    string        // empty: URLs are not written to a file
	Binders                        int           // bindings in flight at most
	ScheduledEvents                bool
	resourceLock                   string   // of the election; must be leases
	keepBudgets                    []string // scheduler names; "*": all profiles
	gentle                         Gentle
	reserve                        []string             // scheduler names; "*": all profiles
	reservations                   plugins.Reservations // for the profiles in reserve
	Shadow                         bool                 // compare only, write nothing
	Journal                        records.Flags        // no journal if Dir is empty
	ShadowReport                   string               // a file; "": none
}

// legacyFlags are kube-scheduler's flags from before it had configuration files. They are
// translated into a configuration (Source), so that no later code depends on them;
// --write-config-to writes the result as a current file.
type legacyFlags struct {
	policyFile               string // a Policy, older than KubeSchedulerConfiguration
	policyConfigMap          string // its name; the Policy is under policyKey
	policyConfigMapNamespace string
	provider                 string // --algorithm-provider
	schedulerName            string // "": default-scheduler
	affinityWeight           int32
	lockName, lockNamespace  string // empty: the newer flags are used
}

// Add adds the flags to the set, and returns their destination. After the set is parsed, Validate
// must be called before any other method.
func Add(set *pflag.FlagSet) *Flags {
	f := &Flags{
		Set: set, Serving: serve.Defaults(securePort), lead: lead.Defaults(configv1.SchedulerDefaultLockObjectName),
		Logs: logs.NewOptions(), Metrics: metrics.NewOptions(), gates: map[string]bool{},
		legacy: legacyFlags{policyConfigMapNamespace: "kube-system"},
	}
	f.cluster.AddFlags(set)
	set.StringVar(&f.cluster.Master, "master", "", "address of the API server, which overrides the kubeconfig")
	set.Float32Var(&f.qps, "kube-api-qps", 0, "maximum requests per second to the API server; 0: no limit")
	set.IntVar(&f.burst, "kube-api-burst", 0, "burst of requests that --kube-api-qps allows (default: twice --kube-api-qps)")
	set.StringVar(&f.contentType, "kube-api-content-type", "application/vnd.kubernetes.protobuf",
		"content type of requests to the API server")

	set.StringVar(&f.config, "config", "",
		"a KubeSchedulerConfiguration file, or a legacy Policy file; it is watched while the scheduler runs (default: upstream's defaults)")
	set.StringVar(&f.WriteConfigTo, "write-config-to", "",
		"write the configuration to this file, - for standard output, and end; a legacy one is translated")
	f.addLegacy()
	set.Var(gateFlag{cliflag.NewMapStringBool(&f.gates)}, "feature-gates",
		"Gate=true|false, separated by commas; these have an effect: "+strings.Join(honouredGates(true), ", ")+" (default true), "+
			strings.Join(honouredGates(false), ", ")+
			" (default false); other values that would change what kube-scheduler does are refused")

	f.lead.AddFlags(set)
	set.StringVar(&f.resourceLock, "leader-elect-resource-lock", "leases", "leases, nothing else")
	f.Serving.AddFlags(set)
	set.StringVar(&f.AddressFile, "address-file", "",
		"write the URLs of the endpoints to this file, one per line; berth explain finds them next to the kubeconfig, as scheduler.url")
	set.BoolVar(&f.profiling, "profiling", true,
		"serve /debug/pprof/ and /debug/flags/v on --secure-port; on --health-bind-address only if this flag is given")
	set.BoolVar(&f.contentionProfiling, "contention-profiling", false,
		"record where goroutines block, for /debug/pprof/block; slows the scheduler down")
	set.DurationVar(&f.MaxUnschedulable, "pod-max-in-unschedulable-pods-duration", 5*time.Minute,
		"how long a pod waits at most before it is tried again without an event that could help it")
	set.StringSliceVar(&f.keepBudgets, "preemption-respects-budgets", nil,
		"scheduler names of profiles whose preemption never takes a pod that a PodDisruptionBudget protects, "+
			"system-critical pods excepted; without =NAME: all")
	set.Lookup("preemption-respects-budgets").NoOptDefVal = "*"
	f.gentle.AddFlags(set)
	set.StringSliceVar(&f.reserve, "reserve-for-pod-groups", nil,
		"scheduler names of profiles that reserve room, as it becomes free, for a pod group that has fitted nowhere "+
			"for long; without =NAME: all")
	set.Lookup("reserve-for-pod-groups").NoOptDefVal = "*"
	set.DurationVar(&f.reservations.After, "pod-group-reservation-after", 10*time.Minute,
		"with --reserve-for-pod-groups: how long a group waits before room is reserved")
	set.DurationVar(&f.reservations.For, "pod-group-reservation-duration", 30*time.Minute,
		"with --reserve-for-pod-groups: how long room is reserved for a group at most; no reservation begins for as "+
			"long after a reservation that did not help its group")
	set.Float64Var(&f.reservations.Share, "pod-group-reservation-share", 0.5,
		"with --reserve-for-pod-groups: share of the cluster's CPU, memory, extended resources and devices that all "+
			"reservations may take, above 0 and up to 1")
	set.IntVar(&f.SearchLimit, "pod-group-search-limit", cycle.DefaultSearchLimit,
		"how long an attempt at a pod group may search for a placement of pods that differ, and how many domains of a "+
			"topology constraint it may try, in judgements of a node")
	set.BoolVar(&f.Shadow, "shadow", false,
		"write nothing: compare what another scheduler chooses for the pods of the profiles with the best node")
	set.StringVar(&f.ShadowReport, "shadow-report", "",
		"with --shadow: write the comparison to this file as JSON, every minute and at the end")
	f.Journal.AddFlags(set, "record the scheduler's input and decisions in this folder, for berth replay; without "+
		"environment variables, commands, attributes of volumes, and annotations that no decision reads; with the "+
		"parameters of device claims and classes")
	set.IntVar(&f.Binders, "binders", 64, "maximum number of bindings in flight")
	set.BoolVar(&f.ScheduledEvents, "scheduled-events", true, "write an event Scheduled for each bound pod")
	f.Metrics.AddFlags(set)
	logsapi.AddFlags(f.Logs, set)
	addIgnored(set)
	return f
}

// addLegacy adds the flags of old manifests.
func (f *Flags) addLegacy() {
	set, l := f.Set, &f.legacy
	set.StringVar(&l.policyFile, "policy-config-file", "", "a Policy file (predicates and priorities), translated; followed like --config")
	set.StringVar(&l.policyConfigMap, "policy-configmap", "", "the same in a ConfigMap, key policy.cfg; read at the start")
	set.StringVar(&l.policyConfigMapNamespace, "policy-configmap-namespace", l.policyConfigMapNamespace, "namespace of --policy-configmap")
	set.StringVar(&l.provider, "algorithm-provider", "", "DefaultProvider or ClusterAutoscalerProvider, translated")
	set.Int32Var(&l.affinityWeight, "hard-pod-affinity-symmetric-weight", 1,
		"weight of other pods' required affinity to the pod when nodes are scored, 0 to 100; not with --config")
	set.StringVar(&l.lockName, "lock-object-name", "", "deprecated: use --leader-elect-resource-name")
	set.StringVar(&l.lockNamespace, "lock-object-namespace", "", "deprecated: use --leader-elect-resource-namespace")
	set.StringVar(&l.schedulerName, "scheduler-name", "",
		"with the flags above, or without --config: the schedulerName of the pods to schedule (default default-scheduler)")
}

// Validate returns the first error, with its flag. Conflicts with the configuration file are
// reported when the file is read.
func (f *Flags) Validate() error {
	f.Serving.Parsed(f.Set)
	if err := f.Serving.Validate(); err != nil {
		return err
	}

	// At most one source is allowed; with two, the intended one would be ambiguous.
	sources := slices.DeleteFunc([]string{f.config, f.legacy.policyFile, f.legacy.policyConfigMap, f.legacy.provider},
		func(given string) bool { return given == "" })
	switch {
	case len(sources) > 1:
		return fmt.Errorf("--config, --policy-config-file, --policy-configmap and --algorithm-provider: give one of them")
	case f.config != "" && f.legacy.schedulerName != "":
		return fmt.Errorf("--scheduler-name: cannot be used with --config, which names the scheduler (profiles[].schedulerName)")
	case f.config != "" && f.given("hard-pod-affinity-symmetric-weight"):
		return fmt.Errorf("--hard-pod-affinity-symmetric-weight: cannot be used with --config, which sets it " +
			"(hardPodAffinityWeight of InterPodAffinityArgs)")
	case f.resourceLock != "leases":
		return fmt.Errorf("--leader-elect-resource-lock %q: must be leases", f.resourceLock)
	case f.Binders < 1:
		return fmt.Errorf("--binders %d: must be 1 or more", f.Binders)
	case f.qps < 0:
		return fmt.Errorf("--kube-api-qps %v: must not be negative", f.qps)
	case f.burst < 0:
		return fmt.Errorf("--kube-api-burst %d: must not be negative", f.burst)
	case f.ShadowReport != "" && !f.Shadow:
		return fmt.Errorf("--shadow-report: requires --shadow")
	case f.reservations.After < 0:
		return fmt.Errorf("--pod-group-reservation-after %v: must not be negative", f.reservations.After)
	case f.reservations.For <= 0:
		return fmt.Errorf("--pod-group-reservation-duration %v: must be greater than zero", f.reservations.For)
	case !(f.reservations.Share > 0 && f.reservations.Share <= 1):
		return fmt.Errorf("--pod-group-reservation-share %v: must be above 0 and up to 1", f.reservations.Share)
	case f.SearchLimit < 1:
		return fmt.Errorf("--pod-group-search-limit %d: must be 1 or more", f.SearchLimit)
	case f.MaxUnschedulable <= 0:
		return fmt.Errorf("--pod-max-in-unschedulable-pods-duration %v: must be greater than zero", f.MaxUnschedulable)
	}

	for _, err := range f.Metrics.Validate() {
		return err
	}
	if err := cmp.Or(f.gentle.Validate(), f.validateGates()); err != nil {
		return err
	}

	var err error
	if f.Groups, err = groups.GatesOf(f.gates); err != nil {
		return err
	}
	if len(f.reserve) > 0 && !f.Groups.Generic {
		return fmt.Errorf("--reserve-for-pod-groups: requires --feature-gates=%s=true", groups.GenericWorkload)
	}
	return f.Journal.Validate()
}

// JournalHeader returns the flags recorded in a journal.
func (f *Flags) JournalHeader() journal.Header {
	return journal.Header{
		Added: f.Added(), Disabled: f.Disabled(), MaxWait: f.MaxUnschedulable, Shadow: f.Shadow, Groups: f.Groups,
		SearchLimit: f.SearchLimit, PrepareAside: true, ResizePreemption: f.ResizePreemption(),
	}
}

// Added returns the flags' additions to the profiles of the configuration, in the form kept by a
// journal: a replay has the file, but not the flags.
func (f *Flags) Added() config.Added {
	a := config.Added{
		CompareTolerations: f.CompareTolerations(), WithoutStorageScores: f.WithoutStorageScores(),
		AllowMissingDrivers: f.AllowMissingDrivers(), PreemptDevices: f.PreemptDevices(),
		KeepBudgets: f.keepBudgets, Reserve: f.reserve, Gentle: f.gentle.Names, PreemptionDelay: f.gentle.Delay,
		MinRunTime: f.gentle.MinRunTime, LookAhead: plugins.LookAhead(f.gentle.LookAhead),
	}
	if len(f.reserve) > 0 {
		a.Reservations = f.reservations
	}
	return a
}

// MetricsChosen reports whether Metrics has settings to apply. Applying Metrics without settings
// logs an error.
func (f *Flags) MetricsChosen() bool {
	return f.given("show-hidden-metrics-for-version") || f.given("disabled-metrics") ||
		f.given("allow-metric-labels") || f.given("allow-metric-labels-manifest")
}

// given reports whether the user set the flag, even to its default.
func (f *Flags) given(name string) bool { return f.Set.Changed(name) }

// Profiles applies flags to profiles: respecting disruption budgets in preemption, gentle
// preemption, and reservations of resources for pod groups. It changes the profiles in place, and
// is called each time a configuration is read, including after a change of the file.
func (f *Flags) Profiles(profiles []*plugins.Profile) error {
	if err := forNamed("--preemption-respects-budgets", f.keepBudgets, profiles,
		func(p *plugins.Profile) { p.KeepBudgets = true }); err != nil {
		return err
	}
	if err := f.gentle.Apply(profiles); err != nil {
		return err
	}
	return forNamed("--reserve-for-pod-groups", f.reserve, profiles, func(p *plugins.Profile) { p.Reservations = f.reservations })
}

// forNamed calls do with the profiles of these names, or with all for "*". An unknown name is an
// error: it is likely to be a mistake in the flag.
func forNamed(flag string, names []string, profiles []*plugins.Profile, do func(*plugins.Profile)) error {
	for _, name := range names {
		known := name == "*"
		for _, p := range profiles {
			if name == "*" || name == p.SchedulerName {
				do(p)
				known = true
			}
		}
		if !known {
			return fmt.Errorf("%s %s: no profile has this schedulerName", flag, name)
		}
	}
	return nil
}

// Gentle names the profiles with gentle preemption; see [plugins.Profile].
type Gentle struct {
	Names []string      // scheduler names; "*": all profiles
	Delay time.Duration // 0: none
	// MinRunTime protects pods that started recently; 0: none.
	MinRunTime time.Duration
	LookAhead  string // a [plugins.LookAhead]
}

// AddFlags adds the flags to the set.
func (g *Gentle) AddFlags(set *pflag.FlagSet) {
	set.StringSliceVar(&g.Names, gentleFlag[2:], nil,
		"scheduler names of profiles whose pods wait for room that earlier victims are leaving before they preempt "+
			"others, and spare groups of their own priority or a higher one; without =NAME: all")
	set.Lookup(gentleFlag[2:]).NoOptDefVal = "*"
	set.DurationVar(&g.Delay, "preemption-delay", 0,
		"with --gentle-preemption: how long a pod is unschedulable before it preempts others, so that an autoscaler can add nodes instead")
	set.DurationVar(&g.MinRunTime, "preemption-min-run-time", 0,
		"with --gentle-preemption: pods that have run for less than this are preempted only if other pods do not suffice")
	set.StringVar(&g.LookAhead, "preemption-look-ahead", "",
		"with --gentle-preemption: prefer victims whose replacements fit on other nodes, among the nodes that are otherwise "+
			"equal (ties), or among those with the same priority of their most important victim (highest-victim)")
}

// gentleFlag is the flag in the form for messages; gentleFlag[2:] is its name.
const gentleFlag = "--gentle-preemption"

// Validate returns the first error, with its flag.
func (g *Gentle) Validate() error {
	switch {
	case g.Delay < 0:
		return fmt.Errorf("--preemption-delay %v: must not be negative", g.Delay)
	case g.Delay > 0 && len(g.Names) == 0:
		return fmt.Errorf("--preemption-delay: requires %s", gentleFlag)
	case g.MinRunTime < 0:
		return fmt.Errorf("--preemption-min-run-time %v: must not be negative", g.MinRunTime)
	case g.MinRunTime > 0 && len(g.Names) == 0:
		return fmt.Errorf("--preemption-min-run-time: requires %s", gentleFlag)
	case !slices.Contains([]plugins.LookAhead{"", plugins.Ties, plugins.HighestVictim}, plugins.LookAhead(g.LookAhead)):
		return fmt.Errorf("--preemption-look-ahead %q: must be %s or %s", g.LookAhead, plugins.Ties, plugins.HighestVictim)
	case g.LookAhead != "" && len(g.Names) == 0:
		return fmt.Errorf("--preemption-look-ahead: requires %s", gentleFlag)
	}
	return nil
}

// Apply applies the flags to profiles, in place.
func (g *Gentle) Apply(profiles []*plugins.Profile) error {
	return forNamed(gentleFlag, g.Names, profiles, func(p *plugins.Profile) {
		p.GentlePreemption, p.PreemptionDelay, p.MinRunTime, p.LookAhead = true, g.Delay, g.MinRunTime, plugins.LookAhead(g.LookAhead)
	})
}
