package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Config is a configuration that was read and found good. It does not change afterwards: to reload
// is to read another one. Its profiles have plugins with state, so it serves one cluster (see
// [plugins.Profile.Fresh]).
//
// How a file becomes one, by the files of this package:
//
//	config.go            which kind of file it is
//	decode.go            today's files: strict decoding
//	policy.go, componentconfig.go, translate.go
//	                     legacy files: read, and written anew in today's terms
//	defaults.go          what the file leaves out
//	validate.go          what can be checked without plugins
//	profiles.go, resolve.go
//	                     which plugins run where, and what has no effect
type Config struct {
	// Spec is the whole configuration. Scalars have their defaults, but for the client's QPS and
	// Burst: 0 means that the file says nothing, and upstream's 50 a second would slow Berth down.
	// Profiles are as in the file.
	Spec configv1.KubeSchedulerConfiguration
	// Profiles are the compiled profiles of Spec, in the same order.
	Profiles []*plugins.Profile
	// Notes tell, with the path of the field, what has no effect or, in a legacy file, no
	// equivalent.
	Notes []string
	// Legacy says that the file was translated; YAML prints the translation.
	Legacy bool

	written configv1.KubeSchedulerConfiguration // as in the file, or as translated, without defaults
}

// Options tell what a file may refer to, and what flags of the scheduler change in its profiles.
// The zero value reads files without out-of-tree plugins and with the feature gates at their
// defaults.
type Options struct {
	// Outside are the plugins that are compiled in beside Berth's own, with the extension points
	// that each extends.
	Outside map[string]plugins.Point
	// Probe, if set, is asked for every plugin that a profile enables and that is neither Berth's
	// own nor in Outside: whether there is one, and which extension points it extends, with the
	// arguments that the file gives it: nil, or a *runtime.Unknown, as upstream's plugin factories
	// get them. Whoever answers may make the plugin for that.
	Probe func(schedulerName, plugin string, args runtime.Object) (points plugins.Point, known bool, err error)
	// CompareTolerations lets tolerations with the operators Gt and Lt count (upstream: the feature
	// gate TaintTolerationComparisonOperators, off by default).
	CompareTolerations bool
	// WithoutStorageScores: VolumeBinding scores nothing (upstream: without the feature gate
	// StorageCapacityScoring, which is on by default).
	WithoutStorageScores bool
	// AllowMissingDrivers lets pods go where the CSI driver of a volume is missing (upstream:
	// without the feature gate VolumeLimitScaling, which is on by default).
	AllowMissingDrivers bool
	// PolicyFromConfigMap gets the legacy policy that a file refers to in a ConfigMap; nil where
	// there is no cluster.
	PolicyFromConfigMap func(namespace, name string) ([]byte, error)
}

// Default returns the configuration that holds without a file: one profile, default-scheduler, with
// the default plugins.
func Default(options Options) (*Config, error) {
	return finishConfig(configv1.KubeSchedulerConfiguration{}, nil, options)
}

// Load reads a file. The error has the file's name in front, unless the system's error has it.
func Load(file string, options Options) (*Config, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return Parse(file, data, options)
}

// Parse reads a configuration; file is its name, for messages and for the files it refers to.
func Parse(file string, data []byte, options Options) (*Config, error) {
	c, err := parseConfig(file, data, options)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, oneLine(err))
	}
	c.Notes = append(c.Notes, noteUnread(data)...)
	return c, nil
}

// oneLine joins the lines that YAML errors come in: an error is one line in a log.
func oneLine(err error) error {
	if !strings.Contains(err.Error(), "\n") {
		return err
	}
	return errors.New(strings.Join(strings.Fields(err.Error()), " "))
}

// parseConfig finds out what kind of file it is, and reads it as that. A file that is no YAML at
// all gets the decoder's error, which has the line.
func parseConfig(file string, data []byte, options Options) (*Config, error) {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := yaml.Unmarshal(data, &head); err == nil {
		switch {
		// Checked before decoding, whose own error names neither what is missing nor what can be
		// read.
		case head.Kind == "" && head.APIVersion == "":
			return nil, fmt.Errorf("apiVersion and kind are missing: %s", wanted)
		case head.Kind == "":
			return nil, fmt.Errorf("kind is missing: %s", wanted)
		case head.APIVersion == "":
			return nil, fmt.Errorf("apiVersion is missing, of kind %q: %s", head.Kind, wanted)
		case head.Kind == "Policy":
			t, err := translatePolicy(data, head.APIVersion)
			if err != nil {
				return nil, err
			}
			return finishLegacy(t, options)
		case legacyVersions[head.APIVersion]:
			t, err := translateComponentConfig(data, filepath.Dir(file), options)
			if err != nil {
				return nil, err
			}
			return finishLegacy(t, options)
		}
	}

	spec, err := decodeConfig(data)
	// The library's error names a Go type of the scheme.
	if runtime.IsNotRegisteredError(err) {
		return nil, fmt.Errorf("no kind %q is registered for version %q: %s", head.Kind, head.APIVersion, wanted)
	}
	if err != nil {
		return nil, err
	}
	return finishConfig(*spec, nil, options)
}

// translation is a legacy file in today's terms.
type translation struct {
	spec  configv1.KubeSchedulerConfiguration
	notes []string
}

// finishLegacy compiles a translated file. An error says so: its paths are of the translation,
// which the user has not written.
func finishLegacy(t *translation, options Options) (*Config, error) {
	c, err := finishConfig(t.spec, t.notes, options)
	if err != nil {
		return nil, fmt.Errorf("translated: %w", err)
	}
	c.Legacy = true
	return c, nil
}

// finishConfig compiles a configuration: defaults, checks, profiles. written stays as it is, for
// YAML.
func finishConfig(written configv1.KubeSchedulerConfiguration, notes []string, options Options) (*Config, error) {
	c := &Config{written: written, Notes: notes}
	written.DeepCopyInto(&c.Spec)
	setDefaults(&c.Spec)
	if err := validateSpec(&c.Spec); err != nil {
		return nil, err
	}
	if err := c.makeProfiles(options); err != nil {
		return nil, err
	}
	return c, nil
}

// Profile returns the profile that serves the scheduler name, or nil. Pods with a name that no
// profile serves are not this scheduler's.
func (c *Config) Profile(schedulerName string) *plugins.Profile {
	for _, p := range c.Profiles {
		if p.SchedulerName == schedulerName {
			return p
		}
	}
	return nil
}

// Arguments returns the arguments that the file gives a plugin in a profile, as JSON; nil if it
// gives none. Plugins from outside read them by themselves.
func (c *Config) Arguments(schedulerName, plugin string) []byte {
	for i := range c.Spec.Profiles {
		profile := &c.Spec.Profiles[i]
		if *profile.SchedulerName != schedulerName {
			continue
		}
		for j := range profile.PluginConfig {
			if profile.PluginConfig[j].Name == plugin {
				return profile.PluginConfig[j].Args.Raw
			}
		}
	}
	return nil
}

// YAML prints the configuration as a file of kubescheduler.config.k8s.io/v1: as it was written, or
// as it was translated. Defaults are left out, so that a later version's apply.
func (c *Config) YAML() ([]byte, error) {
	spec := c.written.DeepCopy()
	spec.APIVersion, spec.Kind = configv1.SchemeGroupVersion.String(), "KubeSchedulerConfiguration"
	encoded, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	// Numbers stay as they are written: as a float64, large ones would be rounded.
	decoder.UseNumber()
	if err := decoder.Decode(&tree); err != nil {
		return nil, err
	}
	return yaml.Marshal(pruneEmpty(tree))
}

// pruneEmpty drops what says nothing: the types of the API print empty structs and zero durations.
// Plugin arguments are kept whole. It returns nil for what is empty, and changes maps and slices in
// place. false is kept: a field that is printed with it was set to it.
func pruneEmpty(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, part := range v {
			// In arguments an empty list or a zero may mean something else than leaving it out.
			if key == "args" {
				continue
			}
			if part = pruneEmpty(part); part == nil {
				delete(v, key)
			} else {
				v[key] = part
			}
		}
		if len(v) == 0 {
			return nil
		}
	case []any:
		for i := range v {
			v[i] = pruneEmpty(v[i])
		}
		if len(v) == 0 {
			return nil
		}
	case string:
		if v == "" || v == "0s" {
			return nil
		}
	// A 0 in the file is what leaving the field out means, or it was refused.
	case json.Number:
		if v == "0" {
			return nil
		}
	}

	return value
}
