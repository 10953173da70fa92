// Package fragmentation values the free capacity of a node by what the pods that come can still
// use of it.
//
// What comes is a distribution of shapes ([Task]). The worth of a node ([Outlook.Worth]) has three
// terms, all of them sums of integers, in thousandths of a device times [one]:
//
//   - near: the device capacity that the next task can use, on average. A device that is free
//     counts for a task only if the node has the CPU and memory for that task, the share is free on
//     this device, and enough devices are whole. This is the measure of "Beware of Fragmentation"
//     (Weng et al., USENIX ATC 2023), without its rounding.
//   - balance: a node whose CPU runs out before its devices do, or the other way round, strands
//     what is left of the other. The difference of the two free shares counts squared, and for
//     more where the tasks want more CPU than there is.
//   - far: what of a device will be left in the end, when no task fits any more. The first term
//     looks one task ahead and cannot tell a remainder that a common share fills exactly from one
//     that it fills badly. [Remainders] finds the expected remainder by playing on: it fills
//     devices with tasks drawn from the distribution, by its own values, corrects these, and keeps
//     those with which most was placed. That is more than a mean of what was left: where some tasks
//     leave much behind wherever they are, room for others is kept beside others.
//
// A placement costs what it takes from the worth of its node. That depends on the node alone, so
// that a cache of costs has to look again only at nodes whose pods changed.
package fragmentation
