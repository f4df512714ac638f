/* Where there is no memory for JSON, the process says so and dies. jansson itself would return what it returns for text
 * that is no JSON, and a checkpoint would count as damaged, or a configuration as wrong. */
#pragma once

/* From now on, for all JSON of this process; before any is made. */
void json_memory_guard(void);
