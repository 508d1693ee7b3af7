#include "stamps.h"

#include <stdlib.h>

static const Driver *driver; /* constant once set */

enum { DEEPEST = 8 };

/* Whether a graph can be stamped. If not, count why: nodes that prevent removing others again, or unknown nodes.
 * Conditional ones count first, because CUPTI cannot trace them either. */
static int can_take(const Node *nodes, size_t count, int depth) {
    int has_memory = 0;
    for (size_t i = 0; i < count; i++) {
        int type = -1;
        if (driver->cuGraphNodeGetType(nodes[i], &type) || type < 0 || type > NODE_LAST_KNOWN || depth > DEEPEST)
            return ring_count(COUNT_graphs_left_unknown, 1), 0;
        if (type == NODE_CONDITIONAL) return ring_count(COUNT_graphs_left_conditional, 1), 0;
        has_memory |= type == NODE_MEM_ALLOC || type == NODE_MEM_FREE;
        if (type != NODE_GRAPH) continue;
        Graph child = NULL;
        size_t inner = 0;
        if (driver->cuGraphChildGraphNodeGetGraph(nodes[i], &child) || driver->cuGraphGetNodes(child, NULL, &inner))
            return ring_count(COUNT_graphs_left_refused, 1), 0;
        Node *inside = malloc((inner + 1) * sizeof *inside);
        int takes = inside && !driver->cuGraphGetNodes(child, inside, &inner) && can_take(inside, inner, depth + 1);
        free(inside);
        if (!takes) return 0;
    }
    return !has_memory || (ring_count(COUNT_graphs_left_memory, 1), 0);
}

static int add(Device *device, Graph graph, uint16_t id, Node *nodes, size_t count, Node pair[2]) {
    Arguments a;
    size_t roots = count, leaves = 0;
    KernelNode head = device_stamp(device, (uint64_t)id << 1 | HEAD, &a);
    if (driver->cuGraphAddKernelNode(&pair[HEAD], graph, NULL, 0, &head)) return pair[HEAD] = NULL, 0;
    Node *others = nodes + count + 1, *heads = others + count + 1;
    roots = count + 1;
    if (driver->cuGraphGetRootNodes(graph, others, &roots)) return 0;
    size_t kept = 0;
    for (size_t i = 0; i < roots; i++)
        if (others[i] != pair[HEAD]) others[kept++] = others[i];
    for (size_t i = 0; i < kept; i++) heads[i] = pair[HEAD];
    if (driver->cuGraphAddDependencies(graph, heads, others, kept)) return 0;
    for (size_t i = 0; i < count; i++) {
        size_t dependents = 0;
        if (driver->cuGraphNodeGetDependentNodes(nodes[i], NULL, &dependents)) return 0;
        if (!dependents) others[leaves++] = nodes[i];
    }
    KernelNode tail = device_stamp(device, (uint64_t)id << 1 | TAIL, &a);
    if (driver->cuGraphAddKernelNode(&pair[TAIL], graph, others, leaves, &tail)) return pair[TAIL] = NULL, 0;
    return 1;
}

int stamps_add(Device *device, Graph graph, uint16_t id, Node pair[2]) {
    size_t count = 0;
    pair[HEAD] = pair[TAIL] = NULL;
    driver = device_driver();
    if (driver->cuGraphGetNodes(graph, NULL, &count) || !count) return ring_count(COUNT_graphs_left_empty, 1), 0;
    Node *nodes = malloc(3 * (count + 1) * sizeof *nodes);
    int done = nodes && !driver->cuGraphGetNodes(graph, nodes, &count) && can_take(nodes, count, 0);
    if (done && !(done = add(device, graph, id, nodes, count, pair))) {
        stamps_remove(pair);
        ring_count(COUNT_graphs_left_refused, 1);
    }
    free(nodes);
    return done;
}

void stamps_remove(Node pair[2]) {
    for (int i = 0; i < 2; i++)
        if (pair[i]) driver->cuGraphDestroyNode(pair[i]), pair[i] = NULL;
}
