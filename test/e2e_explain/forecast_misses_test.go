// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eexplain

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// keep writes a wrongly forecast operation to the folder of -misses, so that the forecast can be
// repeated without a cluster: by berth what-if -f before.yaml, with the operations in
// forecast.json.
func (f *fortune) keep(t *trial) {
	if *misses == "" {
		return
	}
	dir := filepath.Join(*misses, fmt.Sprintf("%d-%d", *seed, t.number))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		f.Fatal(err)
	}
	forecast, err := json.MarshalIndent(t.forecast, "", " ")
	if err != nil {
		f.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"before.yaml": t.manifest, "after.yaml": manifestOf(f, f.read().Set.Objects()), "forecast.json": forecast,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			f.Fatal(err)
		}
	}
}

// manifestOf formats objects as a manifest.
func manifestOf(t testing.TB, objects []metav1.Object) (text []byte) {
	t.Helper()
	for _, o := range objects {
		object := o.(runtime.Object).DeepCopyObject()
		kinds, _, err := scheme.Scheme.ObjectKinds(object)
		if err != nil {
			t.Fatal(err)
		}
		object.GetObjectKind().SetGroupVersionKind(kinds[0])
		document, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		text = append(append(text, "---\n"...), document...)
	}
	return text
}
