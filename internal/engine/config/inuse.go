// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
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

// InUsePath is the scheduler's endpoint for the document. InUseAnnotation is the annotation that
// holds the document on the scheduler's Lease, for commands that cannot reach the scheduler.
const (
	InUsePath       = "/debug/configuration"
	InUseAnnotation = "berth.dev/scheduler-configuration"
)

// mostOnLease bounds the document on a Lease, in bytes: the Lease is written every two seconds, and
// sent to all its watchers.
const mostOnLease = 64 << 10

// InUse is the published configuration of a running scheduler. The commands explain and what-if use
// it to predict the scheduler's decisions without access to its flags and files. It contains no
// credentials: extenders and out-of-tree plugins are included only by name.
type InUse struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Holder is the scheduler's identity in leader election. If the Lease with the document has
	// another holder, the document was written by an earlier scheduler.
	Holder string `json:"holder,omitempty"`
	// Server is the API server's address in the scheduler's kubeconfig; set only by the endpoint.
	Server string `json:"server,omitempty"`
	// Profiles holds the file's profiles; if it is empty, the default profile applies.
	Profiles json.RawMessage `json:"profiles,omitempty"`
	// Outside names the extenders and the out-of-tree plugins, which only the scheduler itself can
	// call.
	Outside []string `json:"outside,omitempty"`
	Added
	Groups groups.Gates `json:"groups,omitzero"`
}

// Added holds the effects of the scheduler's flags on its profiles. Lists contain schedulerNames of
// profiles; "*" means all.
type Added struct {
	CompareTolerations bool `json:"compareTolerations,omitempty"`
	// WithoutStorageScores and AllowMissingDrivers are set if the feature gates
	// StorageCapacityScoring and VolumeLimitScaling, respectively, are disabled.
	WithoutStorageScores bool `json:"withoutStorageScores,omitempty"`
	AllowMissingDrivers  bool `json:"allowMissingDrivers,omitempty"`
	// PreemptDevices is set if the feature gate BerthDevicePreemption is enabled.
	PreemptDevices bool     `json:"preemptDevices,omitempty"`
	KeepBudgets    []string `json:"keepBudgets,omitempty"`
	// Gentle names the profiles with GentlePreemption.
	Gentle          []string          `json:"gentle,omitempty"`
	PreemptionDelay time.Duration     `json:"preemptionDelay,omitempty"`
	MinRunTime      time.Duration     `json:"minRunTime,omitempty"`
	LookAhead       plugins.LookAhead `json:"lookAhead,omitempty"`
	// Reserve names the profiles with Reservations.
	Reserve      []string             `json:"reserve,omitempty"`
	Reservations plugins.Reservations `json:"reservations,omitzero"`
}

// Parse reads the configuration like a scheduler with these flags. name is used in error messages,
// and as the base of relative paths.
func (a *Added) Parse(name string, text []byte) (*Config, error) {
	// A reader of the document lacks out-of-tree plugins.
	c, err := Parse(name, text, Options{CompareTolerations: a.CompareTolerations, WithoutStorageScores: a.WithoutStorageScores,
		AllowMissingDrivers: a.AllowMissingDrivers, PreemptDevices: a.PreemptDevices})
	if err != nil {
		return nil, err
	}

	named := func(names []string, p *plugins.Profile) bool {
		return slices.Contains(names, "*") || slices.Contains(names, p.SchedulerName)
	}
	// These settings are not plugin arguments: preemption and groups read them from the profile.
	for _, p := range c.Profiles {
		p.KeepBudgets = p.KeepBudgets || named(a.KeepBudgets, p)
		if named(a.Gentle, p) {
			p.GentlePreemption, p.PreemptionDelay, p.MinRunTime, p.LookAhead = true, a.PreemptionDelay, a.MinRunTime, a.LookAhead
		}
		if named(a.Reserve, p) {
			p.Reservations = a.Reservations
		}
	}

	return c, nil
}

// InUse returns the document about this configuration. It is built from the written file, without
// defaults, so that it stays small.
func (c *Config) InUse(added Added, gates groups.Gates) (*InUse, error) {
	u := &InUse{APIVersion: InUseAPIVersion, Kind: InUseKind, Added: added, Groups: gates}
	// Include only the profiles: no other field affects predicted decisions.
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

	// Of the file, the document contains only the profiles, as JSON.
	var part struct {
		Profiles json.RawMessage `json:"profiles"`
	}
	if err := yaml.Unmarshal(text, &part); err != nil {
		return nil, err
	}

	u.Profiles = part.Profiles
	return u, nil
}

// leaveOut removes out-of-tree plugins from a profile, with their arguments, and records their
// names in Outside. It changes the profile in place.
func (u *InUse) leaveOut(profile *configv1.KubeSchedulerProfile) {
	// "*" under disabled means all plugins, and is not a plugin's name.
	foreign := func(name string) bool {
		_, inTree := plugins.Lookup(name)
		return name != "*" && !inTree
	}

	profile.PluginConfig = slices.DeleteFunc(profile.PluginConfig, func(c configv1.PluginConfig) bool { return foreign(c.Name) })
	if profile.Plugins == nil {
		return
	}

	// Record the names before the plugins are removed.
	for _, name := range enabledNames(profile.Plugins) {
		if foreign(name) {
			u.Outside = append(u.Outside, name)
		}
	}

	for _, set := range allSets(profile.Plugins) {
		set.Enabled = slices.DeleteFunc(set.Enabled, func(p configv1.Plugin) bool { return foreign(p.Name) })
		set.Disabled = slices.DeleteFunc(set.Disabled, func(p configv1.Plugin) bool { return foreign(p.Name) })
	}
}

// OnLease returns the document in the form for a Lease of this holder, or "" if it is too long. It
// omits the API server's address, which a reader of the Lease already has.
func (u *InUse) OnLease(holder string) string {
	told := *u
	told.Holder, told.Server = holder, ""
	text, err := json.Marshal(told)
	// Without the document, readers assume the default profile and report the assumption.
	if err != nil || len(text) > mostOnLease {
		return ""
	}
	return string(text)
}

// ReadInUse reads the document. It returns nil if the text is not such a document. It ignores
// unknown fields, so that an older command can read a newer scheduler's document.
func ReadInUse(text []byte) *InUse {
	u := &InUse{}
	if err := json.Unmarshal(text, u); err != nil || u.Kind != InUseKind {
		return nil
	}
	return u
}

// names returns the scheduler names of the profiles, including profiles that this version of Berth
// cannot compile.
func (u *InUse) names() (names []string) {
	var profiles []struct{ SchedulerName string }
	if err := json.Unmarshal(u.Profiles, &profiles); err != nil || len(profiles) == 0 {
		return []string{v1.DefaultSchedulerName}
	}
	for _, p := range profiles {
		names = append(names, cmp.Or(p.SchedulerName, v1.DefaultSchedulerName))
	}
	return names
}

// compileProfiles creates the profiles. An error means that they belong to another version, with
// plugins or arguments unknown to this version.
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
