// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	componentbase "k8s.io/component-base/config/v1alpha1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/scheduler/extender"
	"github.com/berth-k8s/berth/internal/scheduler/options"
)

// entry is a row of the page: a field, its default, and its fate.
type entry struct {
	initial, fate string
	line          int
}

// fates lists the possible fates of a field.
var fates = []string{"used", "checked only", "ignored", "refused"}

// elsewhereDefaulted lists fields defaulted at their point of use instead of in the configuration,
// with that default.
var elsewhereDefaulted = map[string]string{
	"Extender.httpTimeout": extender.DefaultTimeout.String(),
	"ResourceSpec.name":    "", // the default list has names, but the field has no default

	"UtilizationShapePoint.score": "0", // the default shape of VolumeBinding has scores, but the field's own default is 0
}

// TestConfigurationPageIsComplete verifies that the page has all fields of the types of
// kubescheduler.config.k8s.io/v1, with Berth's defaults.
func TestConfigurationPageIsComplete(t *testing.T) {
	page := configurationPage(t)
	types := map[string]reflect.Type{}
	defaults := map[string]reflect.Value{}
	gather(reflect.ValueOf(inEffect(t)), types, defaults)
	for kind, typ := range known(t).KnownTypes(configv1.SchemeGroupVersion) {
		if strings.HasSuffix(kind, "Args") {
			args := reflect.New(typ)
			plugins.SetArgsDefaults(args.Interface())
			gather(args.Elem(), types, defaults)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(types)) {
		compare(t, name, fieldsOf(types[name]), defaults, page[name])
		delete(page, name)
	}
	for name, rows := range page {
		if len(rows) > 0 && !strings.HasPrefix(name, "Policy") && !strings.HasPrefix(name, "componentconfig") && !slices.Contains(ownTables, name) {
			t.Errorf("docs/reference/configuration.md: no part of the configuration has the type %s", name)
		}
	}
}

// ownTables lists headings of tables about something other than fields.
var ownTables = []string{"Plugins by name", "Predicates", "Priorities"}

func compare(t *testing.T, name string, fields []string, defaults map[string]reflect.Value, rows map[string]entry) {
	t.Helper()
	for _, field := range fields {
		row, ok := rows[field]
		if !ok {
			t.Errorf("docs/reference/configuration.md: %s has no row for %s", name, field)
			continue
		}
		if !slices.ContainsFunc(fates, func(fate string) bool { return row.fate == fate || strings.HasPrefix(row.fate, fate+",") }) {
			t.Errorf("docs/reference/configuration.md:%d: %s.%s is %q: must be one of %q", row.line, name, field, row.fate, fates)
		}
		want, known := elsewhereDefaulted[name+"."+field]
		if !known {
			want = printed(defaults[name+"."+field])
		}
		if row.initial != want {
			t.Errorf("docs/reference/configuration.md:%d: %s.%s has the default %q, not %q", row.line, name, field, want, row.initial)
		}
	}
	for field, row := range rows {
		if !slices.Contains(fields, field) {
			t.Errorf("docs/reference/configuration.md:%d: %s has no field %s", row.line, name, field)
		}
	}
}

func known(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := configv1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	s.AddKnownTypes(configv1.SchemeGroupVersion, &plugins.FragmentationArgs{})
	return s
}

// inEffect returns the configuration in effect without a file and flags.
func inEffect(t *testing.T) configv1.KubeSchedulerConfiguration {
	t.Helper()
	flags := options.Add(pflag.NewFlagSet("scheduler", pflag.ContinueOnError))
	read, err := config.Default(config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	settings, err := flags.Settings(read, nil)
	if err != nil {
		t.Fatal(err)
	}
	return *settings.Full(read)
}

// ours lists the packages of a configuration's types. Types of the Kubernetes API are documented by
// Kubernetes.
var ours = []string{reflect.TypeFor[plugins.FragmentationArgs]().PkgPath(), reflect.TypeFor[configv1.Extender]().PkgPath(), reflect.TypeFor[componentbase.LeaderElectionConfiguration]().PkgPath()}

// gather collects the types within a value, and the values of their fields, using the first element
// of each list.
func gather(value reflect.Value, types map[string]reflect.Type, defaults map[string]reflect.Value) {
	switch value.Kind() {
	case reflect.Pointer:
		inner := reflect.Zero(value.Type().Elem())
		if !value.IsNil() {
			inner = value.Elem()
		}
		gather(inner, types, defaults)
	case reflect.Slice:
		inner := reflect.Zero(value.Type().Elem())
		if value.Len() > 0 {
			inner = value.Index(0)
		}
		gather(inner, types, defaults)
	case reflect.Struct:
		typ := value.Type()
		if !slices.Contains(ours, typ.PkgPath()) {
			return
		}
		if _, seen := types[typ.Name()]; seen {
			return
		}
		types[typ.Name()] = typ
		for i := range typ.NumField() {
			gatherField(typ.Name(), typ.Field(i), value.Field(i), types, defaults)
		}
	}
}

func gatherField(owner string, field reflect.StructField, value reflect.Value, types map[string]reflect.Type, defaults map[string]reflect.Value) {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	if name != "" {
		defaults[owner+"."+name] = value
		gather(value, types, defaults)
		return
	}
	for i := range field.Type.NumField() { // its fields count as the owner's
		gatherField(owner, field.Type.Field(i), value.Field(i), types, defaults)
	}
}

// fieldsOf returns the names of a struct's fields in a file.
func fieldsOf(typ reflect.Type) (names []string) {
	for i := range typ.NumField() {
		field := typ.Field(i)
		switch name, _, _ := strings.Cut(field.Tag.Get("json"), ","); {
		case field.Type == reflect.TypeFor[metav1.TypeMeta](): // apiVersion and kind, which every file has
		case name != "":
			names = append(names, name)
		default:
			names = append(names, fieldsOf(field.Type)...)
		}
	}
	return names
}

// printed formats a default as in a file; it returns "" for an empty value, and for a struct with
// documented fields.
func printed(value reflect.Value) string {
	for value.Kind() == reflect.Pointer { // nil becomes the invalid value, which is of no kind below
		value = value.Elem()
	}
	if value.IsValid() {
		switch v := value.Interface().(type) {
		case metav1.Duration:
			return short(v.Duration)
		case []configv1.ResourceSpec:
			return list(v)
		}
	}
	switch value.Kind() {
	case reflect.String:
		return value.String()
	case reflect.Bool, reflect.Int32, reflect.Int64, reflect.Float32:
		return fmt.Sprint(value.Interface())
	}
	return ""
}

// short formats ten minutes as 10m instead of 10m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	return text
}

// list formats resources as one line of YAML.
func list(resources []configv1.ResourceSpec) string {
	var items []string
	for _, r := range resources {
		items = append(items, fmt.Sprintf("{name: %s, weight: %d}", r.Name, r.Weight))
	}
	if len(items) == 0 {
		return ""
	}
	return "[" + strings.Join(items, ", ") + "]"
}

// configurationPage reads the tables below each heading: field, default, fate.
func configurationPage(t *testing.T) map[string]map[string]entry {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "reference", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := map[string]map[string]entry{}
	section := ""
	for i, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(line, "#") {
			section = strings.Trim(strings.TrimLeft(line, "# "), "`")
			page[section] = map[string]entry{}
		}
		cells := cellsOf(line)
		if len(cells) < 3 || !strings.HasPrefix(cells[0], "`") {
			continue
		}
		for name := range strings.SplitSeq(cells[0], ",") {
			page[section][strings.Trim(name, "` ")] = entry{strings.Trim(cells[1], "`"), cells[2], i + 1}
		}
	}
	return page
}

// TestPluginsOnThePageAreThoseThatThereAre verifies that the table of plugins matches the catalog.
func TestPluginsOnThePageAreThoseThatThereAre(t *testing.T) {
	page := configurationPage(t)["Plugins by name"]
	known := map[string]string{}
	for _, entry := range plugins.Catalog() {
		known[entry.Name] = ""
		if entry.Weight > 0 {
			known[entry.Name] = fmt.Sprint(entry.Weight)
		}
	}
	sameLists(t, "docs/reference/configuration.md, plugins by name", slices.Sorted(maps.Keys(page)), slices.Sorted(maps.Keys(known)))
	for name, row := range page {
		if row.initial != known[name] {
			t.Errorf("docs/reference/configuration.md:%d: %s weighs %s", row.line, name, cmp.Or(known[name], "nothing"))
		}
	}
}

// sameLists verifies that a page's list has the same names as the actual list.
func sameLists(t *testing.T, what string, got, want []string) {
	t.Helper()
	for _, name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("%s: %s is missing", what, name)
		}
	}
	for _, name := range got {
		if !slices.Contains(want, name) {
			t.Errorf("%s: there is no %s", what, name)
		}
	}
}
