// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

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
	"k8s.io/apimachinery/pkg/runtime/serializer"
	configv1 "k8s.io/kube-scheduler/config/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/engine/config/document"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Config is a validated configuration. It is immutable: a reload creates another Config. Its
// profiles have plugins with state, so it serves one cluster (see [plugins.Profile.Fresh]).
//
// A file is processed in these steps, by the files of this package:
//
//	config.go            the kind of file, and strict decoding of current files
//	policy.go, componentconfig.go, translate.go
//	                     legacy files: reading, and translation into a current file
//	defaults.go          defaults of omitted fields
//	validate.go          validation that needs no plugins
//	profiles.go, resolve.go
//	                     the plugins at each extension point, and notes on ineffective fields
type Config struct {
	// Spec is the whole configuration. Scalars have their defaults, except for the client's QPS and
	// Burst: these are 0 if the file omits them, because upstream's default of 50 per second would
	// slow Berth down. Its profiles list the plugins as in the file, not merged with the default
	// plugins.
	Spec configv1.KubeSchedulerConfiguration
	// Profiles holds the compiled profiles of Spec, in the same order.
	Profiles []*plugins.Profile
	// Notes lists the ineffective fields and, for a legacy file, the fields without an equivalent,
	// with their paths.
	Notes []string
	// Legacy means that the file was translated; YAML prints the translation.
	Legacy bool

	written configv1.KubeSchedulerConfiguration // the configuration as written or translated, without defaults
}

// Options holds the out-of-tree plugins available to a file, and the effects of the scheduler's
// flags on its profiles. The zero value reads files without out-of-tree plugins and with the
// feature gates at their defaults.
type Options struct {
	// Outside holds the compiled-in plugins other than Berth's own, with their extension points.
	Outside map[string]plugins.Point
	// Probe, if set, is called for every plugin that a profile enables and that is neither Berth's
	// own nor in Outside. It returns the plugin's extension points and whether the plugin exists.
	// args holds the plugin's arguments from the file, in the form of upstream's plugin factories:
	// nil, or a *runtime.Unknown. Probe may create the plugin.
	Probe func(schedulerName, plugin string, args runtime.Object) (points plugins.Point, known bool, err error)
	// CompareTolerations makes tolerations with the operators Gt and Lt count (upstream: the
	// feature gate TaintTolerationComparisonOperators, off by default).
	CompareTolerations bool
	// WithoutStorageScores disables scoring by VolumeBinding (upstream: without the feature gate
	// StorageCapacityScoring, which is on by default).
	WithoutStorageScores bool
	// AllowMissingDrivers allows pods on nodes missing the CSI driver of a volume (upstream:
	// without the feature gate VolumeLimitScaling, which is on by default).
	AllowMissingDrivers bool
	// PreemptDevices allows pods to preempt other pods for their devices (the feature gate
	// BerthDevicePreemption).
	PreemptDevices bool
	// PolicyFromConfigMap reads a ConfigMap with the legacy policy that a file refers to; nil
	// without a cluster.
	PolicyFromConfigMap func(namespace, name string) ([]byte, error)
}

// Default returns the configuration in effect without a file: one profile, default-scheduler, with
// the default plugins.
func Default(options Options) (*Config, error) {
	return finishConfig(configv1.KubeSchedulerConfiguration{}, nil, options)
}

// Load reads a file. Errors begin with the file's name, unless the system's error includes it.
func Load(file string, options Options) (*Config, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return Parse(file, data, options)
}

// Parse reads a configuration; file is its name, for messages and for paths relative to it.
func Parse(file string, data []byte, options Options) (*Config, error) {
	c, err := parseConfig(file, data, options)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, oneLine(err))
	}
	c.Notes = append(c.Notes, noteUnread(data)...)
	return c, nil
}

// oneLine joins the lines of a YAML error, because an error must be one line in a log.
func oneLine(err error) error {
	if !strings.Contains(err.Error(), "\n") {
		return err
	}
	return errors.New(strings.Join(strings.Fields(err.Error()), " "))
}

// parseConfig determines the kind of file, and reads it accordingly. A file that is not YAML at all
// yields the decoder's error, which includes the line.
func parseConfig(file string, data []byte, options Options) (*Config, error) {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := yaml.Unmarshal(data, &head); err == nil {
		switch {
		// Check before decoding, because the decoder's error names neither the missing field nor
		// the readable kinds.
		case head.Kind == "" && head.APIVersion == "":
			return nil, fmt.Errorf("apiVersion and kind are missing: %s", wanted)
		case head.Kind == "":
			return nil, fmt.Errorf("kind is missing: %s", wanted)
		case head.APIVersion == "":
			return nil, fmt.Errorf("apiVersion is missing, of kind %q: %s", head.Kind, wanted)
		case head.Kind == "Policy":
			t, err := translatePolicy(data, head.APIVersion)
			return finishLegacy(t, err, options)
		case legacyVersions[head.APIVersion]:
			t, err := translateComponentConfig(data, filepath.Dir(file), options)
			return finishLegacy(t, err, options)
		}
	}

	spec, err := decodeConfig(data)
	// Replace the library's error, which names a Go type of the scheme.
	if runtime.IsNotRegisteredError(err) {
		return nil, fmt.Errorf("no kind %q is registered for version %q: %s", head.Kind, head.APIVersion, wanted)
	}
	if err != nil {
		return nil, err
	}
	return finishConfig(*spec, nil, options)
}

// translation is a legacy file translated into a current one.
type translation struct {
	spec  configv1.KubeSchedulerConfiguration
	notes []string
}

// finishLegacy compiles a translated file. Its errors mention the translation: their paths refer to
// the translation, which the user has not written.
func finishLegacy(t *translation, err error, options Options) (*Config, error) {
	if err != nil {
		return nil, err
	}
	c, err := finishConfig(t.spec, t.notes, options)
	if err != nil {
		return nil, fmt.Errorf("translated: %w", err)
	}
	c.Legacy = true
	return c, nil
}

// finishConfig sets the defaults of a configuration, validates it and compiles its profiles.
// written remains unchanged, because YAML prints it.
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

// Profile returns the profile serving the scheduler name, or nil. Pods with an unserved name belong
// to other schedulers.
func (c *Config) Profile(schedulerName string) *plugins.Profile {
	for _, p := range c.Profiles {
		if p.SchedulerName == schedulerName {
			return p
		}
	}
	return nil
}

// YAML prints the configuration as a file of kubescheduler.config.k8s.io/v1, in its written or
// translated form. It omits defaults, so that the defaults of a later version apply.
func (c *Config) YAML() ([]byte, error) {
	spec := c.written.DeepCopy()
	spec.APIVersion, spec.Kind = configv1.SchemeGroupVersion.String(), "KubeSchedulerConfiguration"
	encoded, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	// Numbers keep their written form: large numbers would be rounded as a float64.
	decoder.UseNumber()
	if err := decoder.Decode(&tree); err != nil {
		return nil, err
	}
	return yaml.Marshal(pruneEmpty(tree))
}

// pruneEmpty drops fields with empty values, because the types of the API print empty structs and
// zero durations. Plugin arguments are kept whole. It returns nil for an empty value, and changes
// maps and slices in place. false is kept, because only an explicit false is printed.
func pruneEmpty(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, part := range v {
			// In arguments an empty list or a zero may differ from an omitted field.
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
	// A 0 in the file either has the same meaning as an omitted field, or was refused.
	case json.Number:
		if v == "0" {
			return nil
		}
	}

	return value
}

// codecs decodes the types of kubescheduler.config.k8s.io/v1, and refuses unknown and repeated
// fields. The arguments of Berth's own plugin are decoded like members of that group.
var codecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	if err := configv1.AddToScheme(scheme); err != nil {
		panic(err)
	}
	scheme.AddKnownTypes(configv1.SchemeGroupVersion, &plugins.FragmentationArgs{})
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict)
}()

// decodeConfig reads a KubeSchedulerConfiguration including its plugin arguments. Strict decoding
// errors are collected, so that all misspelt fields are reported together. The steps follow the
// order of apimachinery's codec, which cannot be used without the internal types.
func decodeConfig(data []byte) (*configv1.KubeSchedulerConfiguration, error) {
	decoder := codecs.UniversalDeserializer()
	object, gvk, err := decoder.Decode(data, nil, nil)
	var strict []error
	if err != nil {
		// A strict error is returned with the object: reading continues, to find further errors.
		problem, ok := runtime.AsStrictDecodingError(err)
		if object == nil || !ok {
			return nil, err
		}
		strict = append(strict, problem.Errors()...)
	}

	spec, ok := object.(*configv1.KubeSchedulerConfiguration)
	if !ok {
		return nil, fmt.Errorf("couldn't decode as KubeSchedulerConfiguration, got %s", gvk)
	}

	// Arguments of plugins unknown to the scheme stay raw, for out-of-tree plugins to read.
	if err := spec.DecodeNestedObjects(runtime.WithoutVersionDecoder{Decoder: decoder}); err != nil {
		problem, ok := runtime.AsStrictDecodingError(err)
		if !ok {
			return nil, err
		}
		strict = append(strict, problem.Errors()...)
	}

	if len(strict) > 0 {
		return nil, runtime.NewStrictDecodingError(strict)
	}
	return spec, nil
}

// unmarshalStrict reads a legacy file. It reports unknown and duplicate fields with their paths, so
// that a misspelt field is not lost in the translation.
func unmarshalStrict(data []byte, into any) error {
	// This step detects duplicate keys in YAML; the next step detects fields unknown to the type.
	encoded, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return err
	}
	strict, err := kjson.UnmarshalStrict(encoded, into)
	if err != nil {
		return err
	}
	if len(strict) > 0 {
		return runtime.NewStrictDecodingError(strict)
	}
	return nil
}

// noteUnread returns a note if the file has a document after the first, which kube-scheduler
// ignores silently, and nil otherwise. Empty documents are ignored.
func noteUnread(data []byte) []string {
	line, found := document.Second(string(data))
	switch {
	case !found:
		return nil
	case line == 0:
		return []string{unread}
	}
	return []string{fmt.Sprintf("line %d: %s", line, unread)}
}

// unread is the note of noteUnread. Without the note, a file joined by hand from several files
// would silently lose all documents but the first.
const unread = "only the first document is read, as by kube-scheduler"

// wanted describes the readable files.
var wanted = fmt.Sprintf("want kind KubeSchedulerConfiguration of %s, or a legacy Policy of v1", configv1.SchemeGroupVersion)
