// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/karpenter/pkg/apis"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"
)

// richPool sets all fields that a NodePool passes to its NodeClaims.
const richPool = `apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: rich}
spec:
  weight: 10
  limits: {cpu: "1000", nodes: "50"}
  template:
    metadata:
      labels: {team: data}
      annotations: {example.com/owner: data}
    spec:
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
      expireAfter: 720h
      terminationGracePeriod: 48h
      taints: [{key: team, value: data, effect: NoSchedule}]
      startupTaints: [{key: example.com/agent, effect: NoExecute}]
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [spot, on-demand], minValues: 2}
      - {key: karpenter.kwok.sh/instance-cpu, operator: Gt, values: ["3"]}
      - {key: kubernetes.io/arch, operator: Exists}
      - {key: example.com/generation, operator: In, values: ["7"]}
---
`

// TestNodeClaimsAreWhatTheirCRDAsksFor verifies that an API server with Karpenter's CRD would
// accept the NodeClaims that berth writes for a plan: all fields are known, and the schema and its
// CEL rules are satisfied.
func TestNodeClaimsAreWhatTheirCRDAsksFor(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "berth")
	if out, err := exec.Command("go", "build", "-C", "../..", "-o", binary, "./cmd/berth").CombinedOutput(); err != nil {
		t.Fatalf("build berth: %v\n%s", err, out)
	}
	dir := writeTestWorld(t, 200)
	pool := filepath.Join(dir, "rich.yaml")
	pods, err := os.ReadFile(filepath.Join(dir, podsFile))
	if err != nil {
		t.Fatal(err)
	}
	tolerant := strings.ReplaceAll(string(pods), "\nspec:\n", "\nspec:\n  tolerations: [{key: team, operator: Exists}]\n")
	for file, text := range map[string]string{pool: richPool, filepath.Join(dir, podsFile): tolerant} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	for _, pools := range []string{filepath.Join(dir, nodePoolsFile), pool} {
		cmd := exec.Command(binary, "what-if", "-f", filepath.Join(dir, podsFile), "provision",
			"--catalog", pools, "--catalog", filepath.Join(dir, typesFile), "-o", "nodeclaims")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v\n%s", err, stderr.String())
		}

		claims := strings.Split(strings.TrimPrefix(string(out), "---\n"), "\n---\n")
		if len(claims) < 10 {
			t.Fatalf("berth writes %d NodeClaims:\n%s", len(claims), out)
		}
		for _, text := range claims {
			if faults := faultsOf(t, text); len(faults) > 0 {
				t.Fatalf("%s\nis refused: %v", text, faults)
			}
		}
		if pools == pool {
			checkHandedDown(t, claims[0])
		}
	}
}

// checkHandedDown verifies that a NodeClaim has the fields that its NodePool passes to it.
func checkHandedDown(t *testing.T, text string) {
	t.Helper()
	var claim v1.NodeClaim
	if err := yaml.UnmarshalStrict([]byte(text), &claim); err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintln(claim.Labels["team"], claim.Labels[v1.NodePoolLabelKey], claim.Annotations["example.com/owner"],
		len(claim.Spec.Taints), len(claim.Spec.StartupTaints), claim.Spec.ExpireAfter.Duration, claim.Spec.TerminationGracePeriod.Duration,
		claim.Spec.NodeClassRef.Name)
	if want := "data rich data 1 1 720h0m0s 48h0m0s default\n"; got != want {
		t.Errorf("the NodeClaim has %q, want %q:\n%s", got, want, text)
	}
}

// TestValidationRefuses verifies that faultsOf finds faults.
func TestValidationRefuses(t *testing.T) {
	claim := `apiVersion: karpenter.sh/v1
kind: NodeClaim
metadata: {name: a}
spec:
  nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
  requirements: [{key: topology.kubernetes.io/zone, operator: In, values: [a]}]
`
	if faults := faultsOf(t, claim); len(faults) > 0 {
		t.Fatal(faults)
	}
	for name, change := range map[string][2]string{
		"no class":         {"nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}", "taints: []"},
		"an unknown field": {"spec:", "spec:\n  zone: a"},
		"no values":        {"values: [a]", "values: []"}, // violates a CEL rule
		"no such operator": {"operator: In", "operator: Near"},
	} {
		if faults := faultsOf(t, strings.Replace(claim, change[0], change[1], 1)); len(faults) == 0 {
			t.Errorf("%s is not refused", name)
		}
	}
}

// faultsOf returns the faults that make an API server with Karpenter's CRD reject a NodeClaim or
// drop one of its fields.
func faultsOf(t *testing.T, text string) (faults []string) {
	t.Helper()
	var object map[string]any
	if err := yaml.Unmarshal([]byte(text), &object); err != nil {
		t.Fatal(err)
	}
	internal := &apiextensions.CustomResourceValidation{}
	for _, crd := range apis.CRDs {
		if crd.Spec.Names.Kind != "NodeClaim" {
			continue
		}
		if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(
			crd.Spec.Versions[0].Schema, internal, nil); err != nil {
			t.Fatal(err)
		}
	}

	structural, err := schema.NewStructural(internal.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	validator, _, err := validation.NewSchemaValidator(internal.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range validation.ValidateCustomResource(nil, object, validator) {
		faults = append(faults, err.Error())
	}
	rules, _ := cel.NewValidator(structural, true, celconfig.PerCallLimit).
		Validate(t.Context(), nil, structural, object, nil, celconfig.RuntimeCELCostBudget)
	for _, err := range rules {
		faults = append(faults, err.Error())
	}
	for _, path := range pruning.PruneWithOptions(object, structural, true, schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}) {
		faults = append(faults, "unknown field "+path)
	}
	return faults
}
