// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// examplePlugins lists the user-written plugins named on pages.
var examplePlugins = map[string]plugins.Point{
	"PowerBudget": plugins.PreFilter | plugins.Filters | plugins.PreScore | plugins.Score,
}

// unread lists API groups unknown to Kubernetes' client: only the YAML of their objects is parsed.
var unread = []string{"kustomize.config.k8s.io", "autoscaling.x-k8s.io"}

// document is one document of YAML or JSON on a page.
type document struct {
	page  string
	line  int // of its first line
	lines []string
}

func (d *document) text() string { return strings.Join(d.lines, "\n") + "\n" }

// padded pads the document to its line, so that errors have the page's line numbers.
func (d *document) padded() string { return strings.Repeat("\n", d.line-1) + d.text() }

// documents returns the documents in fenced blocks, and those written to files by commands.
func documents(p *Page) (all []document) {
	for _, block := range p.Blocks {
		switch block.Language {
		case "yaml", "yml", "json":
			all = append(all, split(p.Path, block.Line, block.Lines)...)
		case "sh", "console", "bash", "shell":
			all = append(all, heredocs(p.Path, block)...)
		}
	}
	return all
}

// heredocs returns the documents of `cat > file.yaml <<'END'`.
func heredocs(page string, block Block) (all []document) {
	for i := 0; i < len(block.Lines); i++ {
		command, end, found := strings.Cut(block.Lines[i], "<<")
		if !found {
			continue
		}
		end = strings.Trim(strings.Fields(end)[0], `'"-`)
		first := i + 1
		for i = first; i < len(block.Lines) && block.Lines[i] != end; i++ {
		}
		if strings.Contains(command, ".yaml") || strings.Contains(command, ".json") || strings.Contains(command, "-f -") {
			all = append(all, split(page, block.Line+first, block.Lines[first:i])...)
		}
	}
	return all
}

func split(page string, line int, lines []string) (all []document) {
	for len(lines) > 0 {
		end := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "---") })
		if end < 0 {
			end = len(lines)
		}
		if strings.TrimSpace(strings.Join(lines[:end], "")) != "" {
			all = append(all, document{page, line, lines[:end]})
		}
		end = min(end+1, len(lines))
		line, lines = line+end, lines[end:]
	}
	return all
}

// TestEveryManifestCanBeRead verifies that every manifest on a page can be read: Kubernetes'
// objects by berth simulate -f, and Berth's own documents by Berth. Classes and nodes named by a
// manifest may be elsewhere on its page.
func TestEveryManifestCanBeRead(t *testing.T) {
	read := 0
	for _, page := range pages(t) {
		for _, problem := range problemsOf(page) {
			t.Error(problem)
		}
		read += len(documents(page))
	}
	if read < 10 {
		t.Errorf("only %d manifests were found", read)
	}
}

func TestAWrongManifestIsNamedWithItsLine(t *testing.T) {
	for _, row := range []struct{ manifest, want string }{
		{"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {contaners: []}", "p.md:5: spec.contaners: unknown field"},
		{"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {priorityClassName: none, containers: [{name: c, image: i}]}", `p.md:5: spec.priorityClassName: "none": must be`},
		{"kind: Pod\nmetadata: {name: a}", "p.md:2: apiVersion: required"},
		{"a: [", "p.md:2: "},
		{"apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofile: []", `unknown field "profile"`},
		{"apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles: [{plugins: {score: {enabled: [{name: Mine}]}}}]", `"Mine" does not exist`},
		{"apiVersion: v1\nkind: Policy\npredicates: [{name: None}]", "predicates[0].name"},
		{"apiVersion: berth.dev/v1alpha1\nkind: Scenario\nsteps: [{at: 1m, explode: {}}]", "explode"},
		{"apiVersion: berth.dev/v1alpha1\nkind: Scenery\nsteps: []", "Scenery"},
		{"apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: r}\nrule: []", `unknown field "rule"`},
		{"apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: r}", `no kind "Thing"`},
	} {
		problems := problemsOf(Read("p.md", "```yaml\n"+row.manifest+"\n```\n"))
		if len(problems) != 1 || !strings.HasPrefix(problems[0], "p.md:") || !strings.Contains(problems[0], row.want) {
			t.Errorf("%s\nis %q, want %q", row.manifest, problems, row.want)
		}
	}
	if problems := problemsOf(Read("p.md", "```sh\ncat > a.yaml <<'END'\nkind: Pod\nEND\n```\n")); len(problems) != 1 || !strings.HasPrefix(problems[0], "p.md:3: ") {
		t.Errorf("in a file that a command writes: %q", problems)
	}
}

func problemsOf(p *Page) (problems []string) {
	all := documents(p)
	for i := range all {
		d := &all[i]
		var head struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal([]byte(d.text()), &head); err != nil {
			problems = append(problems, fmt.Sprintf("%s:%d: %v", d.page, d.line, err))
			continue
		}
		var err error
		group, _, _ := strings.Cut(head.APIVersion, "/")
		switch {
		case head.Kind == "KubeSchedulerConfiguration", head.Kind == "Policy" && group != "policy":
			_, err = config.Parse(fmt.Sprintf("%s:%d", d.page, d.line), []byte(d.text()), config.Options{Outside: examplePlugins})
		case group == "berth.dev":
			if _, err = simulate.ParseScenario("scenario.yaml", []byte(d.text())); err != nil {
				err = fmt.Errorf("%s:%d: %w", d.page, d.line, err)
			}
		case slices.Contains(unread, group):
		default:
			problems = append(problems, objectProblems(d, all)...)
		}
		if err != nil {
			problems = append(problems, err.Error())
		}
	}
	return problems
}

// objectProblems returns the errors in Kubernetes objects.
func objectProblems(d *document, page []document) (problems []string) {
	set, err := manifest.Read([]string{"-"}, strings.NewReader(d.padded()), manifest.Options{Workers: 1})
	var list manifest.Errors
	switch {
	case errors.As(err, &list):
		for _, e := range list {
			if !elsewhere(e, page) {
				problems = append(problems, strings.Replace(e.Error(), "<stdin>", d.page, 1))
			}
		}
		return problems
	case err != nil:
		return []string{fmt.Sprintf("%s:%d: %v", d.page, d.line, err)}
	case len(set.Ignored) == 0:
		return nil
	}
	if err := decode(d.text()); err != nil {
		return []string{fmt.Sprintf("%s:%d: %v", d.page, d.line, err)}
	}
	return nil
}

// elsewhere reports whether an object missing from a manifest is on the same page.
func elsewhere(e *manifest.Error, page []document) bool {
	_, kind, named := strings.Cut(e.Text, "must be a ")
	if !named {
		return false
	}
	kind, _, _ = strings.Cut(kind, " of the input")
	name, _, _ := strings.Cut(strings.TrimPrefix(e.Text, `"`), `"`)
	return slices.ContainsFunc(page, func(d document) bool {
		var object struct {
			Kind     string
			Metadata struct{ Name string }
		}
		return yaml.Unmarshal([]byte(d.text()), &object) == nil && strings.EqualFold(object.Kind, kind) && object.Metadata.Name == name
	})
}

var strict = serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()

// decode parses an object not used by Berth.
func decode(text string) error {
	_, _, err := strict.Decode([]byte(text), nil, nil)
	return err
}
