// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const (
	chartFolder     = "../chart/berth"
	kustomizeFolder = "../kustomize"
)

// object is a manifest.
type object map[string]any

func (o object) id() string {
	meta, _ := o["metadata"].(map[string]any)
	namespace, _ := meta["namespace"].(string)
	return fmt.Sprintf("%v %s/%v", o["kind"], namespace, meta["name"])
}

// render renders the chart like `helm template RELEASE -n NAMESPACE`, without hooks and notes.
func render(release, namespace string, values map[string]any) ([]object, error) {
	chart, err := loader.LoadDir(chartFolder)
	if err != nil {
		return nil, err
	}
	options := common.ReleaseOptions{Name: release, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(chart, values, options, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, err
	}
	var objects []object
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Ext(name) != ".yaml" {
			continue
		}
		own, err := parse([]byte(files[name]))
		if err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", name, err, files[name])
		}
		objects = append(objects, own...)
	}
	return sorted(objects), nil
}

func mustRender(t *testing.T, values string) []object {
	t.Helper()
	parsed := map[string]any{}
	if err := yaml.Unmarshal([]byte(values), &parsed); err != nil {
		t.Fatal(err)
	}
	objects, err := render("berth", "berth-system", parsed)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func parse(text []byte) ([]object, error) {
	var objects []object
	for _, document := range bytes.Split(append([]byte("\n"), text...), []byte("\n---")) {
		var o object
		if err := yaml.UnmarshalStrict(document, &o); err != nil {
			return nil, err
		}
		if o != nil {
			objects = append(objects, o)
		}
	}
	return objects, nil
}

func sorted(objects []object) []object {
	slices.SortFunc(objects, func(a, b object) int { return cmp.Compare(a.id(), b.id()) })
	return objects
}

// kustomized renders an overlay with components added, as in a user's own overlay.
func kustomized(t *testing.T, overlay string, components ...string) []object {
	t.Helper()
	// kustomize restricts files to its root, but not other kustomizations.
	disk := filesys.MakeFsOnDisk()
	own := t.TempDir()
	root, err := disk.ReadDir(kustomizeFolder)
	if err != nil || len(root) == 0 {
		t.Fatalf("%s: %v", kustomizeFolder, err)
	}
	absolute, _, err := disk.CleanedAbs(kustomizeFolder)
	if err != nil {
		t.Fatal(err)
	}
	relative := strings.Repeat("../", strings.Count(own, "/")) + strings.TrimPrefix(absolute.String(), "/")
	kustomization := map[string]any{"resources": []string{relative + "/overlays/" + overlay}}
	var with []string
	for _, component := range components {
		with = append(with, relative+"/components/"+component)
	}
	if len(with) > 0 {
		kustomization["components"] = with
	}
	text, err := yaml.Marshal(kustomization)
	if err != nil {
		t.Fatal(err)
	}
	if err := disk.WriteFile(own+"/kustomization.yaml", text); err != nil {
		t.Fatal(err)
	}
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(disk, own)
	if err != nil {
		t.Fatal(err)
	}
	out, err := rendered.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	objects, err := parse(out)
	if err != nil {
		t.Fatal(err)
	}
	return sorted(objects)
}

func asYAML(t *testing.T, objects []object) string {
	t.Helper()
	var out strings.Builder
	for _, o := range objects {
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.String()
}

// clone returns a deep copy.
func clone(t *testing.T, o object) object {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	var c object
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	return c
}
