// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	configv1 "k8s.io/kube-scheduler/config/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/engine/config/document"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

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
