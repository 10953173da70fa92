// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Command pictures draws what a terminal showed as an SVG: go run ./docs/pictures -title "berth up"
// < transcript > up.svg
package main

import (
	"bufio"
	"encoding/xml"
	"flag"
	"fmt"
	"os"
	"strings"
)

// Sizes in pixels. The font is the reader's own monospace, so columns are placed by its usual
// width.
const (
	fontSize   = 13
	charWidth  = 7.8
	lineHeight = 18
	margin     = 18
	bar        = 34
)

func main() {
	title := flag.String("title", "berth", "title of the window")
	flag.Parse()
	if err := draw(*title); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func draw(title string) error {
	var lines []string
	longest := len(title)
	scanner := bufio.NewScanner(os.Stdin)
	for scanner.Scan() {
		line := strings.ReplaceAll(strings.TrimRight(scanner.Text(), " \r"), "\t", "        ")
		lines = append(lines, line)
		longest = max(longest, len([]rune(line)))
	}

	if err := scanner.Err(); err != nil {
		return err
	}
	width, height := int(float64(longest)*charWidth)+2*margin, len(lines)*lineHeight+2*margin+bar
	out := bufio.NewWriter(os.Stdout)
	fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`role="img" aria-label=%q>`+"\n", width, height, width, height, title)
	fmt.Fprintf(out, `<rect width="%d" height="%d" rx="9" fill="#1d2230"/>`+"\n", width, height)
	for i, colour := range []string{"#e06c60", "#e2b04a", "#67b364"} {
		fmt.Fprintf(out, `<circle cx="%d" cy="%d" r="6" fill="%s"/>`+"\n", margin+4+i*20, bar/2+2, colour)
	}

	fmt.Fprintf(out, `<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="%d" `+
		`fill="#d7dce8">`+"\n", fontSize)
	fmt.Fprintf(out, `<text x="%d" y="%d" text-anchor="middle" fill="#8a93a8">%s</text>`+"\n", width/2, bar/2+6, escape(title))
	for i, line := range lines {
		colour := ""
		if strings.HasPrefix(line, "$ ") || strings.HasPrefix(line, "#") {
			colour = ` fill="#8fd0ff"`
		}
		fmt.Fprintf(out, `<text x="%d" y="%d" xml:space="preserve"%s>%s</text>`+"\n", margin, bar+margin+i*lineHeight+
			6, colour, escape(line))
	}

	fmt.Fprintln(out, "</g>\n</svg>")
	return out.Flush()
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a strings.Builder never fails
	return b.String()
}
