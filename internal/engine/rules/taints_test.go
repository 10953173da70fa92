// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"
)

// TestTaintCases runs testdata/taints.txt; its head explains the commands.
func TestTaintCases(t *testing.T) {
	datadriven.RunTest(t, "testdata/taints.txt", func(t *testing.T, d *datadriven.TestData) string {
		head, rest, _ := strings.Cut(d.Input, "\n")
		switch d.Cmd {
		case "tolerates":
			return whoTolerates(t, head, rest)
		case "untolerated":
			return untolerated(t, head, rest)
		case "parse":
			return parsed(strings.Fields(d.Input))
		case "change":
			return changed(t, head, strings.Fields(rest))
		}
		return "unknown command " + d.Cmd
	})
}

func whoTolerates(t *testing.T, taint, tolerations string) string {
	var out strings.Builder
	for line := range strings.Lines(tolerations) {
		answer := "no "
		if Tolerates(&mustTolerations(t, "["+line+"]")[0], &mustTaints(t, taint)[0]) {
			answer = "yes"
		}
		fmt.Fprintf(&out, "%s %s", answer, line)
	}
	return out.String()
}

func untolerated(t *testing.T, taints, tolerations string) string {
	show := func(effects Effects) string {
		taint := Untolerated(mustTaints(t, taints), mustTolerations(t, "["+strings.ReplaceAll(tolerations, "\n", ",")+"]"), effects)
		if taint == nil {
			return "none"
		}
		return taint.ToString()
	}
	return fmt.Sprintf("keeps off: %s\nevicts: %s\ndiscourages: %s", show(KeepsOff), show(Evicts), show(Discourages))
}

func parsed(args []string) string {
	change, err := ParseTaintChange(args)
	if err != nil {
		return "error: " + err.Error()
	}
	var out strings.Builder
	for _, taint := range change.Add {
		fmt.Fprintf(&out, "add %s\n", taint.ToString())
	}
	for _, taint := range change.Remove {
		fmt.Fprintf(&out, "remove %s\n", taint.ToString())
	}
	return out.String()
}

func changed(t *testing.T, taints string, args []string) string {
	change, err := ParseTaintChange(args)
	if err != nil {
		t.Fatal(err)
	}
	words := []string{}
	for _, taint := range change.Apply(mustTaints(t, taints)) {
		words = append(words, taint.ToString())
	}
	return strings.Join(words, " ")
}

func mustTaints(t *testing.T, words string) []v1.Taint {
	t.Helper()
	var taints []v1.Taint
	for _, word := range strings.Fields(words) {
		taint, err := ParseTaint(word)
		if err != nil {
			t.Fatal(err)
		}
		taints = append(taints, taint)
	}
	return taints
}

func mustTolerations(t *testing.T, flow string) []v1.Toleration {
	t.Helper()
	var tolerations []v1.Toleration
	if err := yaml.UnmarshalStrict([]byte(flow), &tolerations); err != nil {
		t.Fatalf("%s: %v", flow, err)
	}
	return tolerations
}

// matches is a second implementation of Tolerates, written from the specification rather than from
// the code. It is the reference for the property test and the fuzz test.
func matches(tol v1.Toleration, taint v1.Taint) bool {
	sameKey := tol.Key == taint.Key || tol.Key == "" && tol.Operator == "Exists"
	if tol.Key == "" && tol.Operator != "Exists" {
		return false
	}
	sameEffect := tol.Effect == "" || tol.Effect == taint.Effect
	var value bool
	switch tol.Operator {
	case "Exists":
		value = true
	case "Equal", "":
		value = tol.Value == taint.Value
	case "Gt", "Lt":
		asked, ok1 := integer(tol.Value)
		has, ok2 := integer(taint.Value)
		value = ok1 && ok2 && (tol.Operator == "Gt" && has > asked || tol.Operator == "Lt" && has < asked)
	}
	return sameKey && sameEffect && value
}

// integer accepts an integer only in its printed form: no plus, no leading zero, no "-0", within 64
// bits.
func integer(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && strconv.FormatInt(n, 10) == s
}

func TestTolerationAgreesWithTheRule(t *testing.T) {
	keys := rapid.SampledFrom([]string{"", "a", "b"})
	values := rapid.SampledFrom([]string{"", "x", "0", "-0", "00", "+1", "1", "01", "2", "-1", "-", "1.5",
		"9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", " 1"})
	effects := rapid.SampledFrom([]v1.TaintEffect{"", "NoSchedule", "PreferNoSchedule", "NoExecute", "Odd"})
	operators := rapid.SampledFrom([]v1.TolerationOperator{"", "Equal", "Exists", "Gt", "Lt", "exists"})
	rapid.Check(t, func(t *rapid.T) {
		tol := v1.Toleration{Key: keys.Draw(t, "key"), Operator: operators.Draw(t, "operator"),
			Value: values.Draw(t, "value"), Effect: effects.Draw(t, "effect")}
		taint := v1.Taint{Key: keys.Draw(t, "taint key"), Value: values.Draw(t, "taint value"), Effect: effects.Draw(t, "taint effect")}
		if got, want := Tolerates(&tol, &taint), matches(tol, taint); got != want {
			t.Fatalf("Tolerates(%+v, %+v) = %v, the rule says %v", tol, taint, got, want)
		}
	})
}

func FuzzTolerates(f *testing.F) {
	f.Add("key1", "Equal", "value1", "NoSchedule", "key1", "value1", "NoSchedule")
	f.Add("", "Exists", "", "", "k", "v", "NoExecute")
	f.Add("k", "Gt", "5", "", "k", "010", "NoSchedule")
	f.Add("k", "Lt", "-", "", "k", "-9", "NoSchedule")
	f.Fuzz(func(t *testing.T, key, operator, value, effect, taintKey, taintValue, taintEffect string) {
		tol := v1.Toleration{Key: key, Operator: v1.TolerationOperator(operator), Value: value, Effect: v1.TaintEffect(effect)}
		taint := v1.Taint{Key: taintKey, Value: taintValue, Effect: v1.TaintEffect(taintEffect)}
		if got, want := Tolerates(&tol, &taint), matches(tol, taint); got != want {
			t.Fatalf("Tolerates(%+v, %+v) = %v, the rule says %v", tol, taint, got, want)
		}
	})
}

func FuzzParseTaint(f *testing.F) {
	for _, s := range []string{"k=v:NoSchedule", "k:NoExecute", "k=:PreferNoSchedule", "a.b/c=d:NoSchedule", "k=v", ":", "=:", "k:NoSchedule:x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		taint, err := ParseTaint(spec)
		if err != nil {
			return
		}
		again, err := ParseTaint(taint.ToString())
		if err != nil || again != taint {
			t.Fatalf("%q reads as %+v, printed %q, read again %+v, %v", spec, taint, taint.ToString(), again, err)
		}
	})
}

func TestTheFirstMatchingTolerationCounts(t *testing.T) {
	tolerations := mustTolerations(t, "[{key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 5}, {key: a, operator: Exists}]")
	taint := mustTaints(t, "a=1:NoExecute")[0]
	if got := TolerationOf(&taint, tolerations); got != &tolerations[0] {
		t.Fatalf("got %+v, want the first", got)
	}
}
