// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// lot is a group of similar nodes to be bought. cpu and memory are sums of the percentages of its
// nodes; divided by their number, they are averages.
type lot struct {
	Node
	nodes       []Node
	pods        int
	cpu, memory float64
}

// Print writes the plan for people. With wide, it lists every node and its pods. It prints the most
// important part first: the price, then the purchases, and last the pods that stay pending.
func (p *Plan) Print(text *answer.Page, wide bool) {
	switch {
	case len(p.Nodes) > 0:
		text.Line("%s; %s.", p.headline(), p.bound())
		lots(text, p.Nodes)
	case p.Replaced == nil || len(p.Pending) > 0:
		text.Line("%s.", p.headline())
	}
	if p.Spot != nil && len(p.Nodes) > 0 {
		text.Line("Spot then has %.1f %% of the CPU of all nodes (limit %.1f %%).", p.Spot.Percent, p.Spot.Most)
	}

	if wide {
		answer.Section(text, "", []string{"NODE", "TYPE", "ZONE", "PODS"}, p.Nodes, func(n Node) []string {
			return []string{n.Name, dash(n.Type), dash(n.Zone), answer.List(len(n.Pods), func(i int) string { return n.Pods[i] })}
		})
	}
	p.scored(text)
	p.replaced(text, wide)
	p.pending(text)
	for _, note := range p.Notes {
		text.Line("note: %s", note)
	}
}

// bound describes the quality of the plan.
func (p *Plan) bound() string {
	if p.best() {
		return "nothing cheaper is possible"
	}
	return fmt.Sprintf("at most %.1f %% above the lower bound", p.Above)
}

// best reports whether nothing cheaper is possible, up to rounding: Above is rounded to hundredths
// of a percent.
func (p *Plan) best() bool { return p.Above < 0.005 }

// scored describes the effect of the scheduler's scores on the plan.
func (p *Plan) scored(text *answer.Page) {
	s := p.Scored
	if s == nil || len(p.Nodes) == 0 {
		return
	}

	text.Line("")
	if s.Pending == 0 {
		text.Line("Where the scheduler chooses among the nodes by its scores, all of these pods run, too.")
		return
	}
	text.Line("Where the scheduler chooses among the nodes by its scores, %s of these pods stay pending; %s for %.4g an hour more take %s.",
		fmt.Sprint(s.Pending), answer.Count(len(s.Nodes), "new node"), s.Hour, answer.Count(s.Pending-len(s.Left), "pod"))
	if len(s.Nodes) > 0 {
		lots(text, s.Nodes)
	}
}

// replaced lists the nodes that could be removed. With wide, it lists every move.
func (p *Plan) replaced(text *answer.Page, wide bool) {
	r := p.Replaced
	if r == nil {
		return
	}
	if len(p.Nodes)+len(p.Pending) > 0 {
		text.Line("")
	}
	if len(r.Exchanges) == 0 {
		text.Line("No node can be removed or replaced by a cheaper one.")
	} else {
		text.Line("Nodes that can be removed or replaced save %.4g an hour, %.0f a month:", r.Hour, r.Month)
		text.Line("%s.", r.summary())
		if r.Headroom > 0 {
			text.Line("Room for %s is kept.", answer.Count(r.Headroom, "more pod"))
		}

		rows := [][]string{{"REMOVE", "ADD", "MOVES", "COST", "SAVED/H"}}
		for _, e := range r.Exchanges {
			rows = append(rows, []string{
				namesOf(e.Gone, wide), dash(addedNodes(e.Nodes, wide)),
				fmt.Sprint(len(e.Moves)), fmt.Sprintf("%.4g", e.MoveCost), fmt.Sprintf("%.4g", e.Hour),
			})
		}
		text.Table("", rows)
		answer.Section(text, "", []string{"TYPE", "CAPACITY", "NODES", "AFTERWARDS"}, r.Types, func(t TypeCount) []string {
			return []string{dash(t.Type), dash(t.CapacityType), fmt.Sprint(t.Before), fmt.Sprint(t.After)}
		})
	}
	if wide {
		moves := slices.Concat(answer.Mapped(r.Exchanges, func(e Exchange) []Move { return e.Moves })...)
		answer.Section(text, "", []string{"POD", "FROM", "TO"}, moves, func(m Move) []string { return []string{m.Pod, m.From, m.To} })
	}
	answer.Section(text, "", []string{"STAYS", "WHY"}, r.Kept, func(k Kept) []string { return []string{k.Node, k.Why} })
}

// mostNames limits the number of nodes named in a cell of a table.
const mostNames = 3

// namesOf lists the nodes to remove. Without wide, it names the first ones.
func namesOf(names []string, wide bool) string {
	if wide || len(names) <= mostNames {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNames], ", "), len(names)-mostNames)
}

// addedNodes lists the nodes to buy. Without wide, it counts many nodes by type.
func addedNodes(nodes []Node, wide bool) string {
	var list []string
	if !wide && len(nodes) > mostNames {
		for _, l := range sorted(nodes) {
			list = append(list, fmt.Sprintf("%d %s", len(l.nodes), cmp.Or(l.Type, l.Pool)))
		}
	} else {
		for _, n := range nodes {
			list = append(list, n.Name+" ("+dash(n.Type)+")")
		}
	}
	return strings.Join(list, ", ")
}

// summary describes the costs, and the lower bound on the cost of the nodes.
func (r *Replaced) summary() string {
	costs := fmt.Sprintf("%.4g an hour afterwards, %.4g an hour today", r.Before-r.Hour, r.Before)
	if r.Least > 0 {
		costs += fmt.Sprintf("; at least %.4g an hour is required", r.Least)
	}
	return costs
}

// lots prints nodes as a table with one line per group of similar nodes.
func lots(text *answer.Page, nodes []Node) {
	heading := []string{"NODES", "POOL", "TYPE", "ZONE", "CAPACITY", "EACH/H", "TOGETHER/H", "PODS", "CPU", "MEMORY"}
	answer.Section(text, "", heading, sorted(nodes), func(l *lot) []string {
		n := float64(len(l.nodes))
		return []string{
			fmt.Sprint(len(l.nodes)), l.Pool, dash(l.Type), dash(l.Zone), dash(l.CapacityType),
			fmt.Sprintf("%.4g", l.Price), fmt.Sprintf("%.4g", l.Price*n), fmt.Sprint(l.pods), bar(l.cpu / n), bar(l.memory / n),
		}
	})
}

// bar draws a fill level.
func bar(percent float64) string {
	full := min(max(int(percent/10+0.5), 0), 10)
	return strings.Repeat("█", full) + strings.Repeat("░", 10-full) + fmt.Sprintf(" %.0f %%", percent)
}

// dash replaces an empty cell.
func dash(text string) string { return cmp.Or(text, "-") }

// sorted groups similar nodes, the most expensive group first.
func sorted(nodes []Node) (lots []*lot) {
	kind := func(n Node) string {
		return fmt.Sprintf("%q %q %q %q %v", n.Pool, n.Type, n.Zone, n.CapacityType, n.Price)
	}
	for _, nodes := range answer.Grouped(nodes, kind) {
		l := &lot{Node: nodes[0], nodes: nodes}
		for _, n := range nodes {
			l.pods += len(n.Pods)
			l.cpu += n.CPU
			l.memory += n.Memory
		}
		lots = append(lots, l)
	}
	slices.SortStableFunc(lots, func(a, b *lot) int {
		return cmp.Compare(b.Price*float64(len(b.nodes)), a.Price*float64(len(a.nodes)))
	})
	return lots
}

// staying counts the pods that stay pending.
func (p *Plan) staying() string {
	if len(p.Pending) == 1 {
		return "1 pod stays pending"
	}
	return answer.Count(len(p.Pending), "pod") + " stay pending"
}

// pending lists the pods that stay pending, grouped by reason.
func (p *Plan) pending(text *answer.Page) {
	if len(p.Pending) == 0 {
		return
	}
	text.Line("")
	text.Warning("%s:", p.staying())
	rows := [][]string{{"PODS", "WHY"}}
	for _, pods := range answer.Grouped(p.Pending, func(w Waiting) string { return w.Message }) {
		names := answer.List(len(pods), func(i int) string { return pods[i].Namespace + "/" + pods[i].Name })
		rows = append(rows, []string{names, pods[0].Message})
	}
	text.Table("  ", rows)
}

// WriteNodeClaims writes the plan as Karpenter's NodeClaims, one for each node. It skips nodes of
// templates, because Karpenter does not manage them.
//
// When applied, they make Karpenter launch exactly these nodes. Each specifies the chosen instance
// type, zone and capacity type, and otherwise the pool's requirements.
func (p *Plan) WriteNodeClaims(out io.Writer) error {
	var all bytes.Buffer
	for _, n := range p.Nodes {
		offer := &p.catalog.Offers[n.offer]
		if offer.pool < 0 {
			continue
		}
		text, err := yaml.Marshal(p.claim(n, offer))
		if err != nil {
			return err
		}
		all.WriteString("---\n")
		all.Write(text)
	}
	_, err := out.Write(all.Bytes())
	return err
}

// Claims returns the NodeClaims that buy the nodes of an exchange, as JSON by name. The suffix
// makes their names unique. Nodes of templates have no NodeClaim.
func (p *Plan) Claims(e *Exchange, suffix string) (map[string][]byte, error) {
	claims := map[string][]byte{}
	for _, n := range e.Nodes {
		offer := &p.catalog.Offers[n.offer]
		if offer.pool < 0 {
			return nil, fmt.Errorf("node %s of type %s: no NodePool of the cluster or the catalog offers it", n.Name, dash(n.Type))
		}
		n.Name += suffix
		claim := p.claim(n, offer)
		metav1.SetMetaDataLabel(&claim.ObjectMeta, execute.BoughtLabel, "true")
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, disruption.KarpenterAnnotation, "true")
		text, err := json.Marshal(claim)
		if err != nil {
			return nil, err
		}
		claims[n.Name] = text
	}
	return claims, nil
}

// claim returns the NodeClaim of a node: the template of its pool, narrowed to the plan's choices.
func (p *Plan) claim(n Node, offer *Offer) *nodeClaim {
	pool := &p.catalog.Pools[offer.pool]
	// The label nodePoolLabel makes the NodeClaim count towards the pool's limits.
	labels := map[string]string{nodePoolLabel: pool.Name}
	maps.Copy(labels, pool.claim.Metadata.Labels)

	claim := &nodeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim"},
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: labels, Annotations: maps.Clone(pool.claim.Metadata.Annotations)},
	}
	claim.Spec.nodeClaimSpec = pool.claim.Spec
	claim.Spec.Requirements = requirementsOf(pool, offer)
	claim.Spec.Resources.Requests = offer.Node.Status.Allocatable
	return claim
}

// requirementsOf returns the pool's requirements with the plan's choices.
func requirementsOf(pool *Pool, offer *Offer) []requirement {
	chosen := map[string]bool{}
	var list []requirement
	for _, key := range []string{"node.kubernetes.io/instance-type", "topology.kubernetes.io/zone", capacityTypeLabel,
		"kubernetes.io/arch", "kubernetes.io/os"} {
		if value := offer.Node.Labels[key]; value != "" {
			list = append(list, requirement{Key: key, Operator: "In", Values: []string{value}})
			chosen[key] = true
		}
	}
	for _, r := range pool.claim.Spec.Requirements {
		// Omit minValues, because a claim for a single instance type could not meet it.
		if !chosen[r.Key] {
			r.MinValues = nil
			list = append(list, r)
		}
	}
	return list
}
