package config

import (
	"encoding/json"
	"slices"
	"time"

	configv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// InUseKind is the kind of the document InUse. Fields may be added, but not renamed or removed.
const (
	InUseKind       = "SchedulerConfigurationInUse"
	InUseAPIVersion = "berth.dev/v1alpha1"
)

// InUsePath is where a scheduler serves the document. InUseAnnotation is the annotation of its
// Lease that holds it for commands that cannot reach the scheduler.
const (
	InUsePath       = "/debug/configuration"
	InUseAnnotation = "berth.dev/scheduler-configuration"
)

// mostOnLease bounds the document on a Lease, in bytes: the Lease is written every two seconds, and
// sent to all that watch it.
const mostOnLease = 64 << 10

// InUse is what a running scheduler decides by, as it tells others: explain and what-if decide as
// it does, without its flags and files. It has no credentials: of extenders and of plugins that are
// not Berth's own there are only the names.
type InUse struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Holder is the scheduler's identity in the Lease that the document is on. If somebody else
	// holds the Lease, the document is about a scheduler that has ended.
	Holder string `json:"holder,omitempty"`
	// Server is the API server as the scheduler's kubeconfig names it; on an endpoint only.
	Server string `json:"server,omitempty"`
	// Profiles are those of the file; without any there is the default profile.
	Profiles json.RawMessage `json:"profiles,omitempty"`
	// Outside are the extenders and the out-of-tree plugins, which nobody else can ask.
	Outside []string `json:"outside,omitempty"`
	Added
	Groups groups.Gates `json:"groups,omitzero"`
}

// Added is what flags of the scheduler add to its profiles. Lists have the schedulerNames of
// profiles; "*" stands for all.
type Added struct {
	CompareTolerations bool `json:"compareTolerations,omitempty"`
	// WithoutStorageScores and AllowMissingDrivers are what feature gates disable.
	WithoutStorageScores bool     `json:"withoutStorageScores,omitempty"`
	AllowMissingDrivers  bool     `json:"allowMissingDrivers,omitempty"`
	KeepBudgets          []string `json:"keepBudgets,omitempty"`
	// Gentle names the profiles with GentlePreemption.
	Gentle          []string      `json:"gentle,omitempty"`
	PreemptionDelay time.Duration `json:"preemptionDelay,omitempty"`
	// Reserve names the profiles with Reservations.
	Reserve      []string             `json:"reserve,omitempty"`
	Reservations plugins.Reservations `json:"reservations,omitzero"`
}

// Parse reads the configuration as a scheduler with these flags does. name is for errors and
// relative paths.
func (a *Added) Parse(name string, text []byte) (*Config, error) {
	c, err := Parse(name, text, a.toOptions())
	if err != nil {
		return nil, err
	}

	named := func(names []string, p *plugins.Profile) bool {
		return slices.Contains(names, "*") || slices.Contains(names, p.SchedulerName)
	}
	// The plugins do not see these; preemption and groups do, through the profile.
	for _, p := range c.Profiles {
		p.KeepBudgets = p.KeepBudgets || named(a.KeepBudgets, p)
		if named(a.Gentle, p) {
			p.GentlePreemption, p.PreemptionDelay = true, a.PreemptionDelay
		}
		if named(a.Reserve, p) {
			p.Reservations = a.Reservations
		}
	}

	return c, nil
}

// toOptions returns those that change what profiles are made of. Out-of-tree plugins are not among
// them: who reads the document does not have them.
func (a *Added) toOptions() Options {
	return Options{CompareTolerations: a.CompareTolerations, WithoutStorageScores: a.WithoutStorageScores,
		AllowMissingDrivers: a.AllowMissingDrivers}
}

// InUse returns the document about this configuration. It is made from what the file says, without
// defaults, so that it stays small.
func (c *Config) InUse(added Added, gates groups.Gates) (*InUse, error) {
	u := &InUse{APIVersion: InUseAPIVersion, Kind: InUseKind, Added: added, Groups: gates}
	// Only the profiles: of the rest nothing has a bearing on decisions that others predict.
	own := Config{written: configv1.KubeSchedulerConfiguration{Profiles: c.written.DeepCopy().Profiles}}
	for i := range own.written.Profiles {
		u.leaveOut(&own.written.Profiles[i])
	}

	if len(c.Spec.Extenders) > 0 {
		u.Outside = append(u.Outside, "extenders")
	}
	slices.Sort(u.Outside)
	u.Outside = slices.Compact(u.Outside)
	text, err := own.YAML()
	if err != nil {
		return nil, err
	}

	// Of the file only the profiles are in the document, as JSON.
	var part struct {
		Profiles json.RawMessage `json:"profiles"`
	}
	if err := yaml.Unmarshal(text, &part); err != nil {
		return nil, err
	}

	u.Profiles = part.Profiles
	return u, nil
}

// leaveOut removes the plugins that are not Berth's own from a profile, with their arguments, and
// notes their names in Outside. The profile is changed in place.
func (u *InUse) leaveOut(profile *configv1.KubeSchedulerProfile) {
	// "*" under disabled stands for all plugins, and is no plugin's name.
	foreign := func(name string) bool {
		_, inTree := plugins.Lookup(name)
		return name != "*" && !inTree
	}

	profile.PluginConfig = slices.DeleteFunc(profile.PluginConfig, func(c configv1.PluginConfig) bool { return foreign(c.Name) })
	if profile.Plugins == nil {
		return
	}

	// Before they are removed, to name them.
	for _, name := range enabledNames(profile.Plugins) {
		if foreign(name) {
			u.Outside = append(u.Outside, name)
		}
	}

	sets := []*configv1.PluginSet{&profile.Plugins.MultiPoint}
	for _, point := range plugins.AllPoints {
		sets = append(sets, pluginSet(profile.Plugins, point))
	}

	for _, set := range sets {
		set.Enabled = slices.DeleteFunc(set.Enabled, func(p configv1.Plugin) bool { return foreign(p.Name) })
		set.Disabled = slices.DeleteFunc(set.Disabled, func(p configv1.Plugin) bool { return foreign(p.Name) })
	}
}

// OnLease is the document as the holder of a Lease writes it there; empty if it is too long. The
// API server's address is left out: whoever reads the Lease has reached it.
func (u *InUse) OnLease(holder string) string {
	told := *u
	told.Holder, told.Server = holder, ""
	text, err := json.Marshal(told)
	// Without the document readers assume the default profile, and say so.
	if err != nil || len(text) > mostOnLease {
		return ""
	}
	return string(text)
}

// ReadInUse reads the document; nil if the text is none. Fields that this version does not know are
// ignored, so that an older command can read a newer scheduler's.
func ReadInUse(text []byte) *InUse {
	u := &InUse{}
	if err := json.Unmarshal(text, u); err != nil || u.Kind != InUseKind {
		return nil
	}
	return u
}

// compileProfiles makes the profiles. An error means that they are of a version with plugins or
// arguments that this one does not have.
func (u *InUse) compileProfiles() ([]*plugins.Profile, error) {
	text, err := json.Marshal(map[string]any{
		"apiVersion": configv1.SchemeGroupVersion.String(), "kind": "KubeSchedulerConfiguration", "profiles": u.Profiles,
	})
	if err != nil {
		return nil, err
	}
	c, err := u.Parse("the scheduler's configuration", text)
	if err != nil {
		return nil, err
	}
	return c.Profiles, nil
}
