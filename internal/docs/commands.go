// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"regexp"
	"strings"
)

// Command is a command on a page outside of scripts: after a prompt of a console, in an indented
// block, or within a sentence.
type Command struct {
	Line int    // from 1
	Text string // without the prompt; continued lines are joined
}

// typed matches the beginning of an indented line with a command, as opposed to output.
var typed = regexp.MustCompile(`^(\$ )?(sudo )?(bin/)?(berth|kubectl|make|go|cd|helm|curl|sh) `)

// Commands returns the commands of a block that is not a script.
func (b Block) Commands() (all []Command) {
	goesOn := false
	for i, line := range b.Lines {
		begins := b.Language == "console" && (strings.HasPrefix(line, "$ ") || strings.HasPrefix(line, "# ")) ||
			b.Language == "" && typed.MatchString(line)
		if !begins && !goesOn {
			continue
		}
		text := strings.TrimSpace(strings.TrimSuffix(line, `\`))
		if goesOn {
			all[len(all)-1].Text += " " + text
		} else {
			all = append(all, Command{b.Line + i, strings.TrimPrefix(strings.TrimPrefix(text, "$ "), "# ")})
		}
		goesOn = strings.HasSuffix(line, `\`)
	}
	return all
}

// Fence returns the line that opens a block, without its backticks: the language and the rest of
// the line. It is empty for an indented block.
func (p *Page) Fence(b Block) string {
	if b.Language == "" {
		return ""
	}
	return strings.TrimLeft(strings.TrimSpace(p.Lines[b.Line-2]), "`")
}

var span = regexp.MustCompile("`([^`]+)`")

// Spans returns the code spans within sentences, each as one line.
func (p *Page) Spans() (all []Command) {
	prose := p.Prose()
	for i, line := range prose {
		if fence, _ := fenceOf(line); fence != "" {
			prose[i] = ""
		}
	}
	text := strings.Join(prose, "\n")
	for _, at := range span.FindAllStringSubmatchIndex(text, -1) {
		line := 1 + strings.Count(text[:at[0]], "\n")
		all = append(all, Command{line, strings.Join(strings.Fields(text[at[2]:at[3]]), " ")})
	}
	return all
}

// Unrun lists the commands on pages that no test runs verbatim, by prefix, each with the reason.
// All other commands of a console run until Ctrl-C, and test/e2e runs them until they report
// readiness.
var Unrun = []struct{ Page, Begins, Why string }{
	{"docs/tasks/journals.md", "berth replay DIR --pod shop/web-0", "TestReplayOfTheControllersJournals prints it, of a journal that it writes"},
	{"README.md", "make up", "all live tests start what it starts"},
	{"README.md", "make test", "the tests cannot be a part of themselves"},
	{"docs/tasks/rebalance.md", "berth rebalance", "the README has it in a script"},
	{"docs/tasks/drain.md", "berth drain", drains},
	{"docs/tasks/drain-without-downtime.md", "berth drain", drains},
	{"docs/tasks/guard-evictions.md", "berth up", guards},
	{"docs/tasks/guard-evictions.md", "kubectl create", guards},
	{"docs/tasks/guard-evictions.md", "kubectl drain", guards},
	{"docs/tasks/roll-nodes.md", "berth drain", drains},
	{"docs/tasks/replace-kube-scheduler.md", "helm install", needsHelm},
	{"docs/tasks/shadow.md", "kubectl -n berth-system port-forward",
		"the pods of a simulated node do not answer: test/e2e_eviction asks a shadow that runs"},
	{"docs/tasks/shadow.md", "curl", "the command before forwards its port"},
	{"docs/tasks/shadow.md", "berth shadow report", "the command before makes its file; cmd/berth has tests of it"},
	{"docs/tasks/install.md", "make image", "minutes; deploy/pack makes the image from small binaries"},
	{"docs/contribute/release.md", "make release", "ten minutes of compiling; deploy/pack makes releases of a small program"},
	{"docs/contribute/release.md", "openssl ", "deploy/pack checks a signature"},
	{"docs/contribute/release.md", "base64 -d", "deploy/pack checks a signature"},
	{"docs/contribute/release.md", "cosign ", "deploy/pack checks a signature; cosign 2.4.1 verified one of it"},
	{"docs/contribute/release.md", "skopeo copy", "a registry"},
	{"docs/contribute/release.md", "helm install", needsHelm},
	{"docs/tasks/replace-kube-scheduler.md", "mv /etc/kubernetes/", needsKubeadm},
	{"docs/tasks/replace-kube-scheduler.md", "sed -i ", needsKubeadm},
	{"docs/tasks/install.md", "berth up --agent", needsRoot + ": test/e2e_node goes the same way"},
	{"docs/tasks/install.md", "berth kubectl get pods,leases", needsRoot + ": test/e2e_node goes the same way"},
	{"docs/tasks/agent.md", "berth up --agent", needsRoot + ": TestAgentPage of test/e2e_node runs the page's block, which has it"},
	{"docs/tasks/agent.md", "make build build-node", longer},
	{"docs/tasks/agent.md", "ctr ", needsRoot + ", and an image of minutes"},
	{"docs/tasks/agent.md", "cp /mnt/berth", needsRoot + ", and an image of minutes"},
	{"docs/tasks/agent.md", "TOKEN=$(kubeadm", needsRoot + ", and a cluster of kubeadm"},
	{"docs/tasks/agent.md", "kubectl config view", needsRoot + ", and a cluster of kubeadm"},
	{"docs/tasks/agent.md", "kubectl --kubeconfig bootstrap.conf", needsRoot + ", and a cluster of kubeadm"},
	{"docs/tasks/agent.md", "berth agent --bootstrap-kubeconfig", needsRoot + ": test/e2e_node joins a cluster"},
	{"docs/evidence/performance.md", "cd test && go test ./e2e_admission", measures},
	{"docs/tasks/ui.md", "cd test && go test ./e2e_ui", measures},
	{"docs/evidence/live-benchmark.md", "make bench-live", measures},
	{"docs/evidence/evictions.md", "cd test && go test ./e2e_eviction", longer},
	{"docs/tasks/plugins.md", "cd test && go test ./pluginparity", longer},
	{"docs/tasks/what-if.md", "cd test && go test ./e2e_explain", longer},
	{"docs/contribute/maintainers.md", "cd test && go test ./versions", "whole API servers are compiled"},
	{"docs/evidence/upstream-specs.md", "make specs", "an hour"},
	{"docs/evidence/upstream-specs.md", "berth up --feature-gates", "a cluster in the foreground"},
	{"docs/evidence/upstream-specs.md", "make node-conformance", needsRoot + ", and half an hour"},
	{"docs/evidence/upstream-integration.md", "make integration", "half an hour, and Kubernetes is compiled from a copy"},
	{"docs/evidence/upstream-integration.md", "make bench-upstream", measures},
	{"docs/evidence/soak.md", "make soak", "an hour; make test plays a short round"},
}

const (
	needsHelm = "helm, and an image in a registry; test/e2e_deploy installs, upgrades, rolls back and uninstalls " +
		"the chart with the helm command"
	needsKubeadm = "a control plane node of kubeadm's: TestFilesOfKubeadm does it to a copy of the files"
	needsRoot    = "root and containerd"
	guards       = "test/e2e drains every node of a cluster with these objects"
	drains       = "test/e2e_explain drains a node that it has filled"
	measures     = "minutes, and alone on the machine"
	longer       = "minutes: make test has it with less"
)

// Unruns reports whether a command of the page is not run verbatim by any test.
func (p *Page) Unruns(c Command) bool { return p.entry(c) >= 0 }

// entry returns the command's index in Unrun, or -1.
func (p *Page) entry(c Command) int {
	for i, u := range Unrun {
		if u.Page == p.Path && strings.HasPrefix(c.Text, u.Begins) {
			return i
		}
	}
	return -1
}
