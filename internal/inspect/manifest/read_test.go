// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/admission"
)

// TestReadCases runs testdata/read*.txt, which map manifests to the objects of each kind, warnings
// and ignored kinds, or to the errors. The line numbers refer to the manifest, from 1.
func TestReadCases(t *testing.T) {
	files, err := filepath.Glob("testdata/read*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			path := filepath.Join(t.TempDir(), "in.yaml")
			if err := os.WriteFile(path, []byte(d.Input+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			set, err := Read([]string{path}, nil, Options{Lenient: d.HasArg("lenient"), Strict: d.HasArg("strict")})
			if err != nil {
				return strings.ReplaceAll(err.Error(), path, "in.yaml") + "\n"
			}
			return strings.ReplaceAll(summary(set), path, "in.yaml")
		})
	}
}

func summary(s *Set) string {
	var out strings.Builder
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		list := v.Field(i)
		if !v.Type().Field(i).IsExported() || list.Kind() != reflect.Slice || list.Len() == 0 || list.Type().Elem().Kind() != reflect.Pointer {
			continue
		}
		fmt.Fprintf(&out, "%s:", v.Type().Field(i).Name)
		for j := range list.Len() {
			meta := list.Index(j).Elem().FieldByName("ObjectMeta")
			name := meta.FieldByName("Name").String()
			if namespace := meta.FieldByName("Namespace").String(); namespace != "" {
				name = namespace + "/" + name
			}
			out.WriteString(" " + name)
		}
		out.WriteByte('\n')
	}
	for _, kind := range slices.Sorted(maps.Keys(s.Ignored)) {
		fmt.Fprintf(&out, "ignored: %d %s\n", s.Ignored[kind], kind)
	}
	for _, warning := range s.Warnings {
		fmt.Fprintf(&out, "warning: %s\n", warning)
	}
	return out.String()
}

// BenchmarkRead reads clusters as printed by kubectl: one of full size, which must take well under
// 10 seconds, and one of a tenth of it.
func BenchmarkRead(b *testing.B) {
	for _, size := range []struct{ nodes, pods int }{{1000, 10_000}, {10_000, 100_000}} {
		b.Run(fmt.Sprintf("nodes=%d,pods=%d", size.nodes, size.pods), func(b *testing.B) {
			data := cluster(size.nodes, size.pods)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				set, err := Read([]string{"-"}, bytes.NewReader(data), Options{})
				if err != nil {
					b.Fatal(err)
				}
				if len(set.Nodes) != size.nodes || len(set.Pods) != size.pods {
					b.Fatal(len(set.Nodes), len(set.Pods))
				}
			}
		})
	}
}

func BenchmarkReadOtherwise(b *testing.B) {
	forms := otherForms(b, 2000)
	for _, name := range slices.Sorted(maps.Keys(forms)) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(forms[name])))
			for b.Loop() {
				set, err := Read([]string{"-"}, bytes.NewReader(forms[name]), Options{Lenient: true})
				if err != nil || len(set.Pods) != 2000 {
					b.Fatal(err, len(set.Pods))
				}
			}
		})
	}
}

func TestTheFormDoesNotMatter(t *testing.T) {
	const pods = 300 // more than one batch
	var want []*v1.Pod
	forms := otherForms(t, pods)
	for _, name := range slices.Sorted(maps.Keys(forms)) {
		set, err := Read([]string{"-"}, bytes.NewReader(forms[name]), Options{Lenient: true})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if want == nil {
			want = set.Pods
		}
		if len(set.Pods) != pods || !apiequality.Semantic.DeepEqual(want, set.Pods) {
			t.Fatalf("%s: other pods, or in another order", name)
		}
	}
}

func TestFoldersAndStandardInput(t *testing.T) {
	dir := t.TempDir()
	node := func(path, name string) {
		t.Helper()
		file := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("{apiVersion: v1, kind: Node, metadata: {name: "+name+"}}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	node("b.yaml", "b")
	node("a.json", "a")
	node("notes.txt", "not-read")
	node("deeper/c.yml", "c")
	names := func(options Options) string {
		set, err := Read([]string{"-", dir}, strings.NewReader("{apiVersion: v1, kind: Node, metadata: {name: first}}"), options)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(summary(set))
	}
	if got := names(Options{}); got != "Nodes: first a b" {
		t.Errorf("got %q", got)
	}
	if got := names(Options{Recursive: true}); got != "Nodes: first a b c" {
		t.Errorf("got %q", got)
	}
	for _, path := range []string{filepath.Join(dir, "absent.yaml"), filepath.Join(dir, "deeper", "..", "empty")} {
		if _, err := Read([]string{path}, nil, Options{}); err == nil {
			t.Errorf("%s: no error", path)
		}
	}
}

func TestOfAFileFullOfOneSlipTheFirstAreNamed(t *testing.T) {
	text := strings.Repeat("{apiVersion: v1, kind: Node, metadata: {nam: x}}\n---\n", 100_000)
	_, err := Read([]string{"-"}, strings.NewReader(text), Options{})
	var wrong Errors
	if !errors.As(err, &wrong) || len(wrong) != maxErrors+1 || wrong[maxErrors].Error() != "and 99980 more errors" {
		t.Fatalf("%d errors, want %d", len(wrong), maxErrors+1)
	}
	if got := wrong[0].Error(); got != `<stdin>:1: metadata.nam: unknown field; did you mean name?` {
		t.Fatal(got)
	}
}

// TestReadsAsTheLibraryDoes verifies that pods in kubectl's output are read as kubectl's YAML
// library reads them.
func TestReadsAsTheLibraryDoes(t *testing.T) {
	data := cluster(20, 200)
	set, err := Read([]string{"-"}, bytes.NewReader(data), Options{})
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Items []map[string]any }
	if err := yaml.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	for i, item := range list.Items[20:] {
		text, err := yaml.Marshal(item)
		if err != nil {
			t.Fatal(err)
		}
		var want v1.Pod
		if err := yaml.UnmarshalStrict(text, &want); err != nil {
			t.Fatal(err)
		}
		admission.Default(&want)
		if !apiequality.Semantic.DeepEqual(&want, set.Pods[i]) {
			t.Fatalf("want\n%+v\ngot\n%+v", want, set.Pods[i])
		}
	}
}

func TestClaimsGetTheDefaultStorageClass(t *testing.T) {
	set, err := Read([]string{"-"}, strings.NewReader(`
{kind: PersistentVolumeClaim, apiVersion: v1, metadata: {name: a}, spec: {resources: {requests: {storage: 1Gi}}}}
---
{kind: StatefulSet, apiVersion: apps/v1, metadata: {name: db}, spec: {selector: {matchLabels: {x: db}}, template: {metadata: {labels: {x: db}}, spec: {containers: [{name: c}]}},
  volumeClaimTemplates: [{metadata: {name: data}, spec: {resources: {requests: {storage: 1Gi}}}}]}}
---
{kind: StorageClass, apiVersion: storage.k8s.io/v1, metadata: {name: fast, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}, provisioner: x}
`), Options{})
	if err != nil {
		t.Fatal(err)
	}
	set.Expand(1)
	for _, claim := range set.PersistentVolumeClaims {
		if claim.Spec.StorageClassName == nil || *claim.Spec.StorageClassName != "fast" {
			t.Errorf("%s: class %v, want fast", claim.Name, claim.Spec.StorageClassName)
		}
	}
	if len(set.PersistentVolumeClaims) != 2 {
		t.Errorf("%d claims, want 2", len(set.PersistentVolumeClaims))
	}
}

// TestTemplatesAndChartsAreRecognised verifies that errors identify unrendered templates and
// charts, unless a fault has another cause.
func TestTemplatesAndChartsAreRecognised(t *testing.T) {
	const template = "Helm template: render it first, with `helm template`"
	for text, want := range map[string][]string{
		"apiVersion: v1\nkind: Pod\nmetadata:\n  name: {{ include \"web.name\" . }}\n":                      {"<stdin>:4: an unrendered " + template},
		"{{- if .Values.enabled }}\napiVersion: v1\nkind: Pod\n---\n{{ end }}\napiVersion: v1\nkind: Pod\n": {"<stdin>:1: an unrendered " + template},
		"apiVersion: v1\nkind: Pod\nmetadata:\n  name: \"{{ .Release.Name }}-web\"\nspec: {containers: [{name: c, image: i}]}\n": {
			"<stdin>:4: an unrendered " + template},
		"apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  annotations: {alert: \"{{ $value }}\"}\nspec:\n  containers: [{name: c, imge: i}]\n": {
			"<stdin>:7: spec.containers[0].imge: unknown field; did you mean image?"},
	} {
		_, err := Read([]string{"-"}, strings.NewReader(text), Options{})
		if got := strings.Split(fmt.Sprint(err), "\n"); !slices.Equal(got, want) {
			t.Errorf("%s\n%q, want %q", text, got, want)
		}
	}

	chart := t.TempDir()
	if err := os.WriteFile(filepath.Join(chart, "Chart.yaml"), []byte("apiVersion: v2\nname: web\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read([]string{chart}, nil, Options{}); fmt.Sprint(err) != chart+": a Helm chart: render it first, with `helm template`" {
		t.Error(err)
	}
}
