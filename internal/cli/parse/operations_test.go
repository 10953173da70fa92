// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package parse

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/internal/inspect/whatif"
)

// read parses the operations of a command with the global flags -f, -k and -n.
func read(words string) (s *Steps, steps []whatif.Step, files []string, err error) {
	s = &Steps{General: pflag.NewFlagSet("what-if", pflag.ContinueOnError), Path: "berth what-if"}
	AddFiles(s.General, &files, "", "")
	s.General.StringP("namespace", "n", "", "")
	if steps, err = s.Read(strings.Fields(words)); err == nil {
		err = s.CheckProvision(steps)
	}
	s.Within("shop")
	return s, steps, files, err
}

// describe formats a step as one line.
func describe(t *testing.T, step *whatif.Step) string {
	t.Helper()
	text := func(v any) string {
		out, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	switch {
	case step.Operation != nil:
		return text(step.Operation)
	case step.Drain != nil:
		return fmt.Sprintf("choose %d %s", step.Choose, text(step.Drain))
	case step.Provision.Spot != nil:
		return fmt.Sprintf("buy scored=%t replace=%t spot=%v", step.Scored, step.Replace, *step.Provision.Spot)
	}
	return fmt.Sprintf("buy scored=%t replace=%t", step.Scored, step.Replace)
}

func TestOperationsAreRead(t *testing.T) {
	for words, want := range map[string]string{
		"taint node/a k=v:NoExecute":       `{"taint":{"nodes":["a"],"taints":["k=v:NoExecute"]}}`,
		"taint nodes a b k=v:NoExecute x-": `{"taint":{"nodes":["a","b"],"taints":["k=v:NoExecute","x-"]}}`,
		"taint a k:NoSchedule --overwrite": `{"taint":{"nodes":["a"],"taints":["k:NoSchedule"],"overwrite":true}}`,
		"taint --all k:NoSchedule":         `{"taint":{"all":true,"taints":["k:NoSchedule"]}}`,
		"taint -l pool=spot k:NoSchedule":  `{"taint":{"selector":"pool=spot","taints":["k:NoSchedule"]}}`,
		"untaint node/a k":                 `{"untaint":{"nodes":["a"],"taints":["k"]}}`,
		"untaint a k x":                    `{"untaint":{"nodes":["a"],"taints":["k","x"]}}`,
		"untaint node/a node/b k x":        `{"untaint":{"nodes":["a","b"],"taints":["k","x"]}}`,
		"cordon a node/b":                  `{"cordon":{"nodes":["b","a"]}}`,
		"uncordon -l pool=spot":            `{"uncordon":{"selector":"pool=spot"}}`,
		"drain node a --ignore-daemonsets --delete-emptydir-data --force --disable-eviction --pod-selector x=y --timeout 10s --grace-period 3": `{"drain":` +
			`{"nodes":["a"],"ignoreDaemonsets":true,"deleteEmptydirData":true,"force":true,"disableEviction":true,"podSelector":"x=y","timeout":"10s"}}`,
		"drain --choose 3 --force":                            `choose 3 {"force":true}`,
		"drain --choose 3 --guard-evictions":                  `choose 3 {"guardEvictions":true}`,
		"drain --choose 3 --guard-evictions=false":            `choose 3 {"guardEvictions":false}`,
		"remove-node node/a":                                  `{"removeNode":{"nodes":["a"]}}`,
		"add-nodes 3 --like node/a":                           `{"addNodes":{"count":3,"like":"a"}}`,
		"add-nodes --like a 1":                                `{"addNodes":{"count":1,"like":"a"}}`,
		"add-pods 4 --like pod/web":                           `{"addPods":{"count":4,"like":"pod/web","namespace":"shop"}}`,
		"add-pods --max --like deployment/web":                `{"addPods":{"max":true,"like":"deployment/web","namespace":"shop"}}`,
		"apply -f a.yaml -k base":                             `{"deploy":["a.yaml","kubectl kustomize base"]}`,
		"scale deployment/web --replicas 0":                   `{"scale":{"workload":"deployment/web","namespace":"shop","replicas":0}}`,
		"scale sts db --replicas 3":                           `{"scale":{"workload":"sts/db","namespace":"shop","replicas":3}}`,
		"delete pod web-0":                                    `{"delete":{"object":"pod/web-0","namespace":"shop"}}`,
		"evict pod/a po/b a":                                  `{"evict":{"pods":["a","b"],"namespace":"shop"}}`,
		"rebalance heal spread":                               `{"rebalance":{"goals":["heal","spread"],"namespace":"shop"}}`,
		"use pod/a --memory 500Mi":                            `{"use":{"pod":"pod/a","namespace":"shop","memory":"500Mi"}}`,
		"use pod a --ephemeral-storage 1Gi":                   `{"use":{"pod":"pod/a","namespace":"shop","ephemeralStorage":"1Gi"}}`,
		"provision --catalog a.yaml --scored":                 `buy scored=true replace=false`,
		"provision --replace --spot-share 0 --catalog a.yaml": `buy scored=false replace=true spot=0`,
		"provision --spot-share 1 --catalog x":                `buy scored=false replace=false spot=1`,
	} {
		_, steps, _, err := read(words)
		if err != nil || len(steps) != 1 {
			t.Errorf("%s: %+v, %v", words, steps, err)
			continue
		}
		if got := describe(t, &steps[0]); got != want {
			t.Errorf("%s:\n%s, want\n%s", words, got, want)
		}
	}

	_, steps, _, err := read("pressure node/a --memory 200Mi --eviction-hard memory.available<1Gi")
	if err != nil || len(steps) != 1 || !strings.Contains(describe(t, &steps[0]), `"nodes":["a"],"memory":"200Mi","evictionHard"`) {
		t.Errorf("pressure: %+v, %v", steps, err)
	}
}

// TestOperationsThatCannotBeReadAreRefused verifies that errors name the operation and its valid
// arguments.
func TestOperationsThatCannotBeReadAreRefused(t *testing.T) {
	for words, want := range map[string]string{
		"nothing":                          `"nothing" is not an operation: must be one of taint, untaint, cordon, `,
		"now drain a":                      `"now" is not an operation`,
		"--nope drain a":                   "unknown flag: --nope (see berth what-if --help)",
		"drain a --nope":                   "unknown flag: --nope (see berth what-if --help)",
		"cordon a --replicas 3":            "unknown flag: --replicas",
		"cordon":                           "cordon: no node specified: write cordon node/NAME",
		"cordon pod/a":                     `cordon "pod/a": must be node/NAME`,
		"cordon node/":                     `cordon "node/": must be node/NAME`,
		"drain node/a/b":                   `drain "node/a/b": must be node/NAME`,
		"taint":                            "taint: specify a node and a taint: write taint node/NAME key=value:NoExecute",
		"taint k=v:NoExecute":              "taint: specify a node and a taint",
		"taint node/a":                     "taint: no taint specified: write taint node/NAME key=value:NoExecute",
		"taint node/a k=v:Never":           "Never",
		"untaint node/a":                   "untaint: no taint specified",
		"drain":                            "drain: no node specified: write drain node/NAME",
		"drain --choose 0":                 "drain --choose 0: must be 1 or more",
		"drain --choose -1":                "drain --choose -1: must be 1 or more",
		"drain --choose few":               `"--choose" flag: must be a whole number`,
		"drain a --choose 2":               "drain: specify nodes, or let --choose select them",
		"drain a --timeout -1s":            "drain --timeout -1s: must not be negative",
		"drain a --timeout 5":              `"--timeout" flag: must be a duration`,
		"remove-node":                      "remove-node: no node specified",
		"add-nodes 3":                      "add-nodes: write add-nodes N --like node/NAME",
		"add-nodes --like node/a":          "add-nodes: write add-nodes N --like node/NAME",
		"add-nodes 0 --like node/a":        `add-nodes "0": must be a number, 1 or more`,
		"add-nodes many --like node/a":     `add-nodes "many": must be a number, 1 or more`,
		"add-nodes 1 2 --like node/a":      "add-nodes: write add-nodes N --like node/NAME",
		"add-nodes 1 --like pod/a":         `add-nodes --like "pod/a": must be node/NAME`,
		"add-pods 3":                       "add-pods: no model specified: use --like pod/NAME",
		"add-pods 3 --max --like pod/a":    `add-pods "3": a number, or --max for as many as fit`,
		"add-pods --like pod/a":            "add-pods: write add-pods N --like pod/NAME",
		"add-pods 0 --like pod/a":          `add-pods "0": must be a number, 1 or more`,
		"apply":                            "apply: nothing specified: use apply -f FILE or apply -k DIR",
		"apply a.yaml":                     "apply: nothing specified",
		"apply -f a.yaml b.yaml":           "apply: nothing specified: use apply -f FILE or apply -k DIR",
		"scale deployment/a":               "scale: write scale deployment/NAME --replicas N",
		"scale --replicas 3":               "scale: write scale deployment/NAME --replicas N",
		"scale deployment/a --replicas -1": "scale: write scale",
		"scale deployment/a deployment/b --replicas 1": "scale: write scale",
		"delete":                         "delete: write delete pod/NAME",
		"delete pod/a pod/b":             "delete: write delete pod/NAME",
		"evict":                          "evict: write evict pod/NAME",
		"evict node/a":                   `"node/a": must be pod/NAME`,
		"rebalance nothing":              "rebalance: ",
		"use pod/a":                      "use: write use pod/NAME --memory 500Mi",
		"use --memory 1Gi":               "use: write use pod/NAME",
		"pressure --memory 1Gi":          "pressure: no node specified",
		"pressure node/a":                "pressure: use pressure node/NAME --memory 200Mi",
		"provision":                      "provision: no catalog specified: use provision --catalog FILE, with NodePools and instance types, or Nodes with the annotation ",
		"provision --catalog a cordon n": "provision: is for what the other operations leave pending: name it last",
		"provision a.yaml":               `provision "a.yaml": unexpected argument: nodes to buy are specified with --catalog FILE`,
		"provision --spot-share 1.1":     "provision --spot-share 1.1: must be from 0 to 1",
		"provision --spot-share -1":      "provision --spot-share -1: must be from 0 to 1",
		"provision --spot-share NaN":     "provision --spot-share NaN: must be from 0 to 1",
		"provision --spot-share much":    `"--spot-share" flag: must be a number`,
	} {
		_, _, _, err := read(words)
		refuses(t, words, err, want)
	}
}

// TestOperationsStandInARow verifies that global flags belong to the command even between
// operations, and that -f after apply belongs to apply.
func TestOperationsStandInARow(t *testing.T) {
	s, steps, files, err := read("-f world.yaml cordon a -n team drain b --force -f more.yaml apply -f new.yaml provision --catalog c,d")
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for i := range steps {
		words = append(words, steps[i].Words)
	}
	if want := []string{"cordon a", "drain b --force", "apply --filename new.yaml", "provision --catalog c,d"}; !slices.Equal(words, want) {
		t.Errorf("%q, want %q", words, want)
	}
	if !slices.Equal(files, []string{"world.yaml", "more.yaml"}) || !slices.Equal(s.Catalog, []string{"c", "d"}) {
		t.Errorf("files %q, catalog %q", files, s.Catalog)
	}
	if namespace := s.General.Lookup("namespace").Value.String(); namespace != "team" {
		t.Errorf("-n %s", namespace)
	}
	if _, steps, _, err := read(""); err != nil || len(steps) > 0 {
		t.Errorf("nothing: %v, %v", steps, err)
	}
}

// TestOperationsAreKnownByTheirWords verifies the look-ups of operations for completion and the
// reference.
func TestOperationsAreKnownByTheirWords(t *testing.T) {
	words := OperationWords()
	if len(words) != 16 || FirstOperation([]string{"-f", "a", "drain"}) != 2 || FirstOperation([]string{"a"}) != 1 {
		t.Errorf("%q", words)
	}
	for _, word := range words {
		kinds, bare := NamedBy(word)
		if bare != slices.Contains([]string{"taint", "untaint", "cordon", "uncordon", "drain", "remove-node", "pressure"}, word) || bare && kinds[0].Name != "Node" {
			t.Errorf("%s: %v, %t", word, kinds, bare)
		}
	}
	if OperationFlags("drain").Lookup("ignore-daemonsets") == nil || OperationFlags("nothing").HasFlags() {
		t.Error("drain has no --ignore-daemonsets, or what is no operation has flags")
	}
	if kinds, _ := NamedBy("nothing"); kinds != nil {
		t.Errorf("%v", kinds)
	}
}
