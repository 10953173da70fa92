// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// TestPictureHasEveryNode verifies that the picture is valid XML for any names, contains every node
// once, and draws no node beyond its border or into another node.
func TestPictureHasEveryNode(t *testing.T) {
	for _, count := range []int{0, 1, 151, 2000} {
		p := &Plan{Pending: []Waiting{{Name: "left"}}, Pods: count, Hour: 7}
		for i := range count {
			p.Nodes = append(p.Nodes, Node{
				Name: fmt.Sprintf("<&%d>", i), Type: fmt.Sprint("a<b&", i%7), Pool: "p", Price: 0.1, CPU: float64(i % 130), Memory: 50,
			})
		}
		var out bytes.Buffer
		if err := p.WriteSVG(&out); err != nil {
			t.Fatal(err)
		}

		tiles := tilesIn(t, out.Bytes())
		if len(tiles) != count || strings.Count(out.String(), "<title>") != count {
			t.Errorf("%d nodes are drawn, want %d", len(tiles), count)
		}
		if !strings.Contains(out.String(), "1 pod stays pending") {
			t.Error("the picture does not say that a pod stays pending")
		}
	}
}

// TestPictureHasEveryExchange verifies the bars for the nodes by type and for the costs.
func TestPictureHasEveryExchange(t *testing.T) {
	p := &Plan{Nodes: []Node{{Name: "n", CPU: 50}}, Replaced: &Replaced{
		Before: 10, Hour: 4, Exchanges: []Exchange{{Hour: 3, Moves: make([]Move, 7)}, {Hour: 1, Moves: make([]Move, 1)}},
		Types: []TypeCount{{"a<b", "spot", 40, 10}, {"c", "", 0, 5}},
	}}
	var out bytes.Buffer
	if err := p.WriteSVG(&out); err != nil {
		t.Fatal(err)
	}
	if tiles := tilesIn(t, out.Bytes()); len(tiles) != 1 {
		t.Errorf("%d nodes are drawn", len(tiles))
	}
	at := 0
	for _, want := range []string{
		">a&lt;b, spot<", `width="420.0"`, ">40 today<", `width="105.0"`, ">10 afterwards<", ">c<", ">0 today<", ">5 afterwards<",
		`width="420.0"`, ">10 today<", `width="294.0"`, ">7 after exchange 1, 7 moves<", ">6 after exchange 2, 1 move<",
	} {
		next := strings.Index(out.String()[at:], want)
		if next < 0 {
			t.Fatalf("%q is missing, or at another place:\n%s", want, &out)
		}
		at += next + len(want)
	}
}

type tile struct {
	X      float64 `xml:"x,attr"`
	Y      float64 `xml:"y,attr"`
	Width  float64 `xml:"width,attr"`
	Height float64 `xml:"height,attr"`
	Class  string  `xml:"class,attr"`
}

func (a tile) contains(b tile) bool {
	const rounding = 0.11
	return b.X >= a.X-rounding && b.Y >= a.Y-rounding && b.X+b.Width <= a.X+a.Width+rounding && b.Y+b.Height <= a.Y+a.Height+rounding
}

// tilesIn returns the positions of the nodes in a picture. It fails the test if nodes share a
// position, or if a node or a bar exceeds its bounds.
func tilesIn(t *testing.T, svg []byte) map[string]bool {
	t.Helper()
	tiles := map[string]bool{}
	var whole, node tile
	for decoder := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return tiles
		}
		if err != nil {
			t.Fatal(err)
		}
		start, ok := token.(xml.StartElement)
		if !ok || start.Name.Local != "rect" {
			continue
		}
		var r tile
		if err := decoder.DecodeElement(&r, &start); err != nil {
			t.Fatal(err)
		}

		switch {
		case r.Class == "bg":
			whole = r
		case r.Class == "node":
			if node = r; !whole.contains(node) {
				t.Fatalf("a node is drawn at %v, and the picture is %v", node, whole)
			}
			if at := fmt.Sprint(r.X, r.Y); tiles[at] {
				t.Fatalf("two nodes are drawn at %s", at)
			} else {
				tiles[at] = true
			}
		case r.Class == "bar" && !whole.contains(r):
			t.Fatalf("a bar is drawn at %v, and the picture is %v", r, whole)
		case r.Class != "bar" && node.Width > 0 && !node.contains(r):
			t.Fatalf("a bar %v is not within its node %v", r, node)
		}
	}
}
