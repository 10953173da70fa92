// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/engine/config"
)

// policyKey is the key of a Policy in a ConfigMap. It is upstream's.
const policyKey = "policy.cfg"

// Source is the origin of the configuration. The zero Source means upstream's defaults.
type Source struct {
	// Name is the file's name, for messages; empty without a file.
	Name string
	// Follow makes a change of the file take effect.
	Follow bool

	wrapped []byte // a legacy configuration made from flags
}

// Source returns the source named by the flags. Legacy flags are wrapped into a configuration of
// version v1alpha1, which had sections for them: package config translates that like any other old
// file.
//
// For example, --scheduler-name=mine as the only flag becomes a file with schedulerName mine and
// algorithmSource.provider DefaultProvider.
func (f *Flags) Source() Source {
	l := &f.legacy
	weighted := f.given("hard-pod-affinity-symmetric-weight")
	legacy := map[string]any{}
	s := Source{}
	switch {
	case f.config != "":
		return Source{Name: f.config, Follow: true}
	case l.policyFile != "":
		s = Source{Name: l.policyFile, Follow: true}
		if l.schedulerName == "" && !weighted {
			return s
		}
		path, err := filepath.Abs(l.policyFile)
		if err != nil {
			path = l.policyFile
		}
		legacy["policy"] = map[string]any{"file": map[string]any{"path": path}}

	case l.policyConfigMap != "":
		s = Source{Name: fmt.Sprintf("ConfigMap %s/%s", l.policyConfigMapNamespace, l.policyConfigMap)}
		legacy["policy"] = map[string]any{"configMap": map[string]any{"namespace": l.policyConfigMapNamespace, "name": l.policyConfigMap}}
	case l.provider != "":
		s = Source{Name: "--algorithm-provider"}
		legacy["provider"] = l.provider
	case l.schedulerName != "", weighted:
		s = Source{Name: "the command line"}
		legacy["provider"] = "DefaultProvider"
	default:
		return s
	}
	file := map[string]any{"apiVersion": "componentconfig/v1alpha1", "kind": "KubeSchedulerConfiguration", "algorithmSource": legacy}
	if l.schedulerName != "" {
		file["schedulerName"] = l.schedulerName
	}
	if weighted {
		file["hardPodAffinitySymmetricWeight"] = l.affinityWeight
	}
	s.wrapped, _ = yaml.Marshal(file) // never an error: only strings, numbers and maps
	return s
}

// Read returns the data for Parse. If the data differs from an earlier call, the configuration has
// changed. Without a file, the data is constant, and nil if nothing is configured.
func (s *Source) Read() ([]byte, error) {
	switch {
	case s.Follow:
		return os.ReadFile(s.Name)
	default:
		return s.wrapped, nil
	}
}

// Parse reads the configuration. data is the result of Read; only a file's data is used.
func (s *Source) Parse(data []byte, options config.Options) (*config.Config, error) {
	switch {
	case s.wrapped != nil:
		return config.Parse(s.Name, s.wrapped, options)
	case s.Name == "":
		return config.Default(options)
	}
	return config.Parse(s.Name, data, options)
}

// PolicyFromConfigMap returns a function that reads a legacy Policy from the cluster, within ten
// seconds. Like upstream, it is called only once, at the start: a changed ConfigMap takes effect
// with a restart.
func PolicyFromConfigMap(client kubernetes.Interface) func(namespace, name string) ([]byte, error) {
	return func(namespace, name string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		found, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		policy, ok := found.Data[policyKey]
		if !ok {
			return nil, fmt.Errorf("has no key %s", policyKey)
		}
		return []byte(policy), nil
	}
}
